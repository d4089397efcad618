module {
  sdy.mesh @mesh = <["x"=2, "y"=4]>
  func.func @main(%arg0: tensor<8x4xbf16>, %arg1: tensor<8x4xf32>) -> (tensor<32x4xf32>, tensor<32x4xbf16>) {
    %0 = stablehlo.convert %arg0 : (tensor<8x4xbf16>) -> tensor<8x4xf32>
    %1 = "stablehlo.all_gather"(%0) <{all_gather_dim = 0 : i64, channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "y">]>, use_global_device_ids}> : (tensor<8x4xf32>) -> tensor<32x4xf32>
    %2 = "stablehlo.all_gather"(%arg1) <{all_gather_dim = 0 : i64, channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "y">]>, use_global_device_ids}> : (tensor<8x4xf32>) -> tensor<32x4xf32>
    %3 = stablehlo.convert %2 : (tensor<32x4xf32>) -> tensor<32x4xbf16>
    return %1, %3 : tensor<32x4xf32>, tensor<32x4xbf16>
  }
}
// becomes
module {
  sdy.mesh @mesh = <["x"=2, "y"=4]>
  func.func @main(%arg0: tensor<8x4xbf16>, %arg1: tensor<8x4xf32>) -> (tensor<32x4xf32>, tensor<32x4xbf16>) {
    %0 = "stablehlo.all_gather"(%arg0) <{all_gather_dim = 0 : i64, channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "y">]>, use_global_device_ids}> : (tensor<8x4xbf16>) -> tensor<32x4xbf16>
    %1 = stablehlo.convert %0 : (tensor<32x4xbf16>) -> tensor<32x4xf32>
    %2 = stablehlo.convert %arg1 : (tensor<8x4xf32>) -> tensor<8x4xbf16>
    %3 = "stablehlo.all_gather"(%2) <{all_gather_dim = 0 : i64, channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "y">]>, use_global_device_ids}> : (tensor<8x4xbf16>) -> tensor<32x4xbf16>
    return %1, %3 : tensor<32x4xf32>, tensor<32x4xbf16>
  }
}
