// machine: h100
module {
  sdy.mesh @mesh = <["x"=2]>
  func.func @main(%arg0: tensor<1024x1024xf32>) -> tensor<1024x1024xf32> {
    %0 = stablehlo.dot_general %arg0, %arg0, contracting_dims = [1] x [0] : (tensor<1024x1024xf32>, tensor<1024x1024xf32>) -> tensor<1024x1024xf32>
    %1 = "stablehlo.async_start"(%arg0) ({
    ^bb0(%arg1: tensor<1024x1024xf32>):
      %2 = "stablehlo.all_reduce"(%arg1) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "x">]>, use_global_device_ids}> ({
      ^bb0(%arg2: tensor<f32>, %arg3: tensor<f32>):
        %3 = stablehlo.add %arg2, %arg3 : tensor<f32>
        stablehlo.return %3 : tensor<f32>
      }) : (tensor<1024x1024xf32>) -> tensor<1024x1024xf32>
      stablehlo.return %2 : tensor<1024x1024xf32>
    }) : (tensor<1024x1024xf32>) -> !stablehlo.future<tensor<1024x1024xf32>>
    %4 = "stablehlo.async_done"(%1) : (!stablehlo.future<tensor<1024x1024xf32>>) -> tensor<1024x1024xf32>
    %5 = stablehlo.dot_general %0, %4, contracting_dims = [1] x [0] : (tensor<1024x1024xf32>, tensor<1024x1024xf32>) -> tensor<1024x1024xf32>
    return %5 : tensor<1024x1024xf32>
  }
}
// becomes
module {
  sdy.mesh @mesh = <["x"=2]>
  func.func @main(%arg0: tensor<1024x1024xf32>) -> tensor<1024x1024xf32> {
    %0 = "stablehlo.async_start"(%arg0) ({
    ^bb0(%arg1: tensor<1024x1024xf32>):
      %1 = "stablehlo.all_reduce"(%arg1) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "x">]>, use_global_device_ids}> ({
      ^bb0(%arg2: tensor<f32>, %arg3: tensor<f32>):
        %2 = stablehlo.add %arg2, %arg3 : tensor<f32>
        stablehlo.return %2 : tensor<f32>
      }) : (tensor<1024x1024xf32>) -> tensor<1024x1024xf32>
      stablehlo.return %1 : tensor<1024x1024xf32>
    }) : (tensor<1024x1024xf32>) -> !stablehlo.future<tensor<1024x1024xf32>>
    %3 = stablehlo.dot_general %arg0, %arg0, contracting_dims = [1] x [0] : (tensor<1024x1024xf32>, tensor<1024x1024xf32>) -> tensor<1024x1024xf32>
    %4 = "stablehlo.async_done"(%0) : (!stablehlo.future<tensor<1024x1024xf32>>) -> tensor<1024x1024xf32>
    %5 = stablehlo.dot_general %3, %4, contracting_dims = [1] x [0] : (tensor<1024x1024xf32>, tensor<1024x1024xf32>) -> tensor<1024x1024xf32>
    return %5 : tensor<1024x1024xf32>
  }
}
