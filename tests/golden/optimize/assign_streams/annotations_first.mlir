module {
  sdy.mesh @mesh = <["x"=2, "y"=2]>
  func.func @main(%arg0: tensor<8xf32>) -> tensor<8xf32> {
    %0 = "stablehlo.async_start"(%arg0) ({
    ^bb0(%arg1: tensor<8xf32>):
      %1 = "stablehlo.all_reduce"(%arg1) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "x">]>, use_global_device_ids}> ({
      ^bb0(%arg2: tensor<f32>, %arg3: tensor<f32>):
        %2 = stablehlo.add %arg2, %arg3 : tensor<f32>
        stablehlo.return %2 : tensor<f32>
      }) : (tensor<8xf32>) -> tensor<8xf32>
      stablehlo.return %1 : tensor<8xf32>
    }) : (tensor<8xf32>) -> !stablehlo.future<tensor<8xf32>>
    %3 = "stablehlo.async_done"(%0) : (!stablehlo.future<tensor<8xf32>>) -> tensor<8xf32>
    %4 = "stablehlo.async_start"(%3) ({
    ^bb0(%arg4: tensor<8xf32>):
      %5 = "stablehlo.all_reduce"(%arg4) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "x">]>, use_global_device_ids}> ({
      ^bb0(%arg5: tensor<f32>, %arg6: tensor<f32>):
        %6 = stablehlo.add %arg5, %arg6 : tensor<f32>
        stablehlo.return %6 : tensor<f32>
      }) : (tensor<8xf32>) -> tensor<8xf32>
      stablehlo.return %5 : tensor<8xf32>
    }) {weft.stream = "mine"} : (tensor<8xf32>) -> !stablehlo.future<tensor<8xf32>>
    %7 = "stablehlo.async_done"(%4) : (!stablehlo.future<tensor<8xf32>>) -> tensor<8xf32>
    %8 = "stablehlo.async_start"(%7) ({
    ^bb0(%arg7: tensor<8xf32>):
      %9 = "stablehlo.all_reduce"(%arg7) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "y">]>, use_global_device_ids}> ({
      ^bb0(%arg8: tensor<f32>, %arg9: tensor<f32>):
        %10 = stablehlo.add %arg8, %arg9 : tensor<f32>
        stablehlo.return %10 : tensor<f32>
      }) {mhlo.frontend_attributes = {_xla_stream_annotation = "2"}} : (tensor<8xf32>) -> tensor<8xf32>
      stablehlo.return %9 : tensor<8xf32>
    }) : (tensor<8xf32>) -> !stablehlo.future<tensor<8xf32>>
    %11 = "stablehlo.async_done"(%8) : (!stablehlo.future<tensor<8xf32>>) -> tensor<8xf32>
    return %11 : tensor<8xf32>
  }
}
// becomes
module {
  sdy.mesh @mesh = <["x"=2, "y"=2]>
  func.func @main(%arg0: tensor<8xf32>) -> tensor<8xf32> {
    %0 = "stablehlo.async_start"(%arg0) ({
    ^bb0(%arg1: tensor<8xf32>):
      %1 = "stablehlo.all_reduce"(%arg1) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "x">]>, use_global_device_ids}> ({
      ^bb0(%arg2: tensor<f32>, %arg3: tensor<f32>):
        %2 = stablehlo.add %arg2, %arg3 : tensor<f32>
        stablehlo.return %2 : tensor<f32>
      }) : (tensor<8xf32>) -> tensor<8xf32>
      stablehlo.return %1 : tensor<8xf32>
    }) {weft.stream = "communication.0"} : (tensor<8xf32>) -> !stablehlo.future<tensor<8xf32>>
    %3 = "stablehlo.async_done"(%0) : (!stablehlo.future<tensor<8xf32>>) -> tensor<8xf32>
    %4 = "stablehlo.async_start"(%3) ({
    ^bb0(%arg4: tensor<8xf32>):
      %5 = "stablehlo.all_reduce"(%arg4) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "x">]>, use_global_device_ids}> ({
      ^bb0(%arg5: tensor<f32>, %arg6: tensor<f32>):
        %6 = stablehlo.add %arg5, %arg6 : tensor<f32>
        stablehlo.return %6 : tensor<f32>
      }) : (tensor<8xf32>) -> tensor<8xf32>
      stablehlo.return %5 : tensor<8xf32>
    }) {weft.stream = "mine"} : (tensor<8xf32>) -> !stablehlo.future<tensor<8xf32>>
    %7 = "stablehlo.async_done"(%4) : (!stablehlo.future<tensor<8xf32>>) -> tensor<8xf32>
    %8 = "stablehlo.async_start"(%7) ({
    ^bb0(%arg7: tensor<8xf32>):
      %9 = "stablehlo.all_reduce"(%arg7) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "y">]>, use_global_device_ids}> ({
      ^bb0(%arg8: tensor<f32>, %arg9: tensor<f32>):
        %10 = stablehlo.add %arg8, %arg9 : tensor<f32>
        stablehlo.return %10 : tensor<f32>
      }) {mhlo.frontend_attributes = {_xla_stream_annotation = "2"}} : (tensor<8xf32>) -> tensor<8xf32>
      stablehlo.return %9 : tensor<8xf32>
    }) {weft.stream = "compute.2"} : (tensor<8xf32>) -> !stablehlo.future<tensor<8xf32>>
    %11 = "stablehlo.async_done"(%8) : (!stablehlo.future<tensor<8xf32>>) -> tensor<8xf32>
    return %11 : tensor<8xf32>
  }
}
