module {
  sdy.mesh @mesh = <["x"=2]>
  func.func @main(%arg0: tensor<4xf32>, %arg1: tensor<f32>) -> (tensor<8xf32>, tensor<8xf32>, tensor<8xf32>, tensor<8xf32>) {
    %0 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %1 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %2 = stablehlo.pad %arg0, %0, low = [2], high = [2], interior = [0] : (tensor<4xf32>, tensor<f32>) -> tensor<8xf32>
    %3 = "stablehlo.all_reduce"(%2) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "x">]>, use_global_device_ids}> ({
    ^bb0(%arg2: tensor<f32>, %arg3: tensor<f32>):
      %4 = stablehlo.add %arg2, %arg3 : tensor<f32>
      stablehlo.return %4 : tensor<f32>
    }) : (tensor<8xf32>) -> tensor<8xf32>
    %5 = stablehlo.pad %arg0, %1, low = [2], high = [2], interior = [0] : (tensor<4xf32>, tensor<f32>) -> tensor<8xf32>
    %6 = "stablehlo.all_reduce"(%5) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "x">]>, use_global_device_ids}> ({
    ^bb0(%arg4: tensor<f32>, %arg5: tensor<f32>):
      %7 = stablehlo.add %arg4, %arg5 : tensor<f32>
      stablehlo.return %7 : tensor<f32>
    }) : (tensor<8xf32>) -> tensor<8xf32>
    %8 = stablehlo.pad %arg0, %1, low = [2], high = [2], interior = [0] : (tensor<4xf32>, tensor<f32>) -> tensor<8xf32>
    %9 = "stablehlo.all_reduce"(%8) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "x">]>, use_global_device_ids}> ({
    ^bb0(%arg6: tensor<f32>, %arg7: tensor<f32>):
      %10 = stablehlo.maximum %arg6, %arg7 : tensor<f32>
      stablehlo.return %10 : tensor<f32>
    }) : (tensor<8xf32>) -> tensor<8xf32>
    %11 = stablehlo.pad %arg0, %arg1, low = [2], high = [2], interior = [0] : (tensor<4xf32>, tensor<f32>) -> tensor<8xf32>
    %12 = "stablehlo.all_reduce"(%11) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "x">]>, use_global_device_ids}> ({
    ^bb0(%arg8: tensor<f32>, %arg9: tensor<f32>):
      %13 = stablehlo.maximum %arg8, %arg9 : tensor<f32>
      stablehlo.return %13 : tensor<f32>
    }) : (tensor<8xf32>) -> tensor<8xf32>
    return %3, %6, %9, %12 : tensor<8xf32>, tensor<8xf32>, tensor<8xf32>, tensor<8xf32>
  }
}
// becomes
module {
  sdy.mesh @mesh = <["x"=2]>
  func.func @main(%arg0: tensor<4xf32>, %arg1: tensor<f32>) -> (tensor<8xf32>, tensor<8xf32>, tensor<8xf32>, tensor<8xf32>) {
    %0 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %1 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %2 = "stablehlo.all_reduce"(%arg0) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "x">]>, use_global_device_ids}> ({
    ^bb0(%arg2: tensor<f32>, %arg3: tensor<f32>):
      %3 = stablehlo.add %arg2, %arg3 : tensor<f32>
      stablehlo.return %3 : tensor<f32>
    }) : (tensor<4xf32>) -> tensor<4xf32>
    %4 = stablehlo.pad %2, %0, low = [2], high = [2], interior = [0] : (tensor<4xf32>, tensor<f32>) -> tensor<8xf32>
    %5 = stablehlo.pad %arg0, %1, low = [2], high = [2], interior = [0] : (tensor<4xf32>, tensor<f32>) -> tensor<8xf32>
    %6 = "stablehlo.all_reduce"(%5) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "x">]>, use_global_device_ids}> ({
    ^bb0(%arg4: tensor<f32>, %arg5: tensor<f32>):
      %7 = stablehlo.add %arg4, %arg5 : tensor<f32>
      stablehlo.return %7 : tensor<f32>
    }) : (tensor<8xf32>) -> tensor<8xf32>
    %8 = "stablehlo.all_reduce"(%arg0) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "x">]>, use_global_device_ids}> ({
    ^bb0(%arg6: tensor<f32>, %arg7: tensor<f32>):
      %9 = stablehlo.maximum %arg6, %arg7 : tensor<f32>
      stablehlo.return %9 : tensor<f32>
    }) : (tensor<4xf32>) -> tensor<4xf32>
    %10 = stablehlo.pad %8, %1, low = [2], high = [2], interior = [0] : (tensor<4xf32>, tensor<f32>) -> tensor<8xf32>
    %11 = stablehlo.pad %arg0, %arg1, low = [2], high = [2], interior = [0] : (tensor<4xf32>, tensor<f32>) -> tensor<8xf32>
    %12 = "stablehlo.all_reduce"(%11) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "x">]>, use_global_device_ids}> ({
    ^bb0(%arg8: tensor<f32>, %arg9: tensor<f32>):
      %13 = stablehlo.maximum %arg8, %arg9 : tensor<f32>
      stablehlo.return %13 : tensor<f32>
    }) : (tensor<8xf32>) -> tensor<8xf32>
    return %4, %6, %10, %12 : tensor<8xf32>, tensor<8xf32>, tensor<8xf32>, tensor<8xf32>
  }
}
