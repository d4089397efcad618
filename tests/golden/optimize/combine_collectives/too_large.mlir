module {
  sdy.mesh @mesh = <["x"=2, "y"=4]>
  func.func @main(%arg0: tensor<4194304xf32>, %arg1: tensor<4194304xf32>, %arg2: tensor<8388608xf32>, %arg3: tensor<8xf32>) -> (tensor<4194304xf32>, tensor<8388608xf32>, tensor<4194304xf32>, tensor<8xf32>) {
    %0 = "stablehlo.all_reduce"(%arg0) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "y">]>, use_global_device_ids}> ({
    ^bb0(%arg4: tensor<f32>, %arg5: tensor<f32>):
      %1 = stablehlo.add %arg4, %arg5 : tensor<f32>
      stablehlo.return %1 : tensor<f32>
    }) : (tensor<4194304xf32>) -> tensor<4194304xf32>
    %2 = "stablehlo.all_reduce"(%arg2) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "y">]>, use_global_device_ids}> ({
    ^bb0(%arg6: tensor<f32>, %arg7: tensor<f32>):
      %3 = stablehlo.add %arg6, %arg7 : tensor<f32>
      stablehlo.return %3 : tensor<f32>
    }) : (tensor<8388608xf32>) -> tensor<8388608xf32>
    %4 = "stablehlo.all_reduce"(%arg1) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "y">]>, use_global_device_ids}> ({
    ^bb0(%arg8: tensor<f32>, %arg9: tensor<f32>):
      %5 = stablehlo.add %arg8, %arg9 : tensor<f32>
      stablehlo.return %5 : tensor<f32>
    }) : (tensor<4194304xf32>) -> tensor<4194304xf32>
    %6 = "stablehlo.all_reduce"(%arg3) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "y">]>, use_global_device_ids}> ({
    ^bb0(%arg10: tensor<f32>, %arg11: tensor<f32>):
      %7 = stablehlo.add %arg10, %arg11 : tensor<f32>
      stablehlo.return %7 : tensor<f32>
    }) : (tensor<8xf32>) -> tensor<8xf32>
    return %0, %2, %4, %6 : tensor<4194304xf32>, tensor<8388608xf32>, tensor<4194304xf32>, tensor<8xf32>
  }
}
// becomes
module {
  sdy.mesh @mesh = <["x"=2, "y"=4]>
  func.func @main(%arg0: tensor<4194304xf32>, %arg1: tensor<4194304xf32>, %arg2: tensor<8388608xf32>, %arg3: tensor<8xf32>) -> (tensor<4194304xf32>, tensor<8388608xf32>, tensor<4194304xf32>, tensor<8xf32>) {
    %0 = "stablehlo.all_reduce"(%arg0) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "y">]>, use_global_device_ids}> ({
    ^bb0(%arg4: tensor<f32>, %arg5: tensor<f32>):
      %1 = stablehlo.add %arg4, %arg5 : tensor<f32>
      stablehlo.return %1 : tensor<f32>
    }) : (tensor<4194304xf32>) -> tensor<4194304xf32>
    %2 = "stablehlo.all_reduce"(%arg2) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "y">]>, use_global_device_ids}> ({
    ^bb0(%arg6: tensor<f32>, %arg7: tensor<f32>):
      %3 = stablehlo.add %arg6, %arg7 : tensor<f32>
      stablehlo.return %3 : tensor<f32>
    }) : (tensor<8388608xf32>) -> tensor<8388608xf32>
    %4:2 = "stablehlo.all_reduce"(%arg1, %arg3) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "y">]>, use_global_device_ids}> ({
    ^bb0(%arg8: tensor<f32>, %arg9: tensor<f32>):
      %5 = stablehlo.add %arg8, %arg9 : tensor<f32>
      stablehlo.return %5 : tensor<f32>
    }) : (tensor<4194304xf32>, tensor<8xf32>) -> (tensor<4194304xf32>, tensor<8xf32>)
    return %0, %2, %4#0, %4#1 : tensor<4194304xf32>, tensor<8388608xf32>, tensor<4194304xf32>, tensor<8xf32>
  }
}
