module {
  sdy.mesh @mesh = <["x"=2, "y"=4]>
  func.func @main(%arg0: tensor<8x4xf32>, %arg1: tensor<8x2xbf16>) -> (tensor<32x4xf32>, tensor<32x2xbf16>, tensor<8x16xf32>) {
    %0 = "stablehlo.all_gather"(%arg0) <{all_gather_dim = 0 : i64, channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "y">]>, use_global_device_ids}> : (tensor<8x4xf32>) -> tensor<32x4xf32>
    %1 = stablehlo.negate %0 : tensor<32x4xf32>
    %2 = "stablehlo.all_gather"(%arg1) <{all_gather_dim = 0 : i64, channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "y">]>, use_global_device_ids}> : (tensor<8x2xbf16>) -> tensor<32x2xbf16>
    %3 = "stablehlo.all_gather"(%arg0) <{all_gather_dim = 1 : i64, channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "y">]>, use_global_device_ids}> : (tensor<8x4xf32>) -> tensor<8x16xf32>
    return %1, %2, %3 : tensor<32x4xf32>, tensor<32x2xbf16>, tensor<8x16xf32>
  }
}
// becomes
module {
  sdy.mesh @mesh = <["x"=2, "y"=4]>
  func.func @main(%arg0: tensor<8x4xf32>, %arg1: tensor<8x2xbf16>) -> (tensor<32x4xf32>, tensor<32x2xbf16>, tensor<8x16xf32>) {
    %0:2 = "stablehlo.all_gather"(%arg0, %arg1) <{all_gather_dim = 0 : i64, channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "y">]>, use_global_device_ids}> : (tensor<8x4xf32>, tensor<8x2xbf16>) -> (tensor<32x4xf32>, tensor<32x2xbf16>)
    %1 = stablehlo.negate %0#0 : tensor<32x4xf32>
    %2 = "stablehlo.all_gather"(%arg0) <{all_gather_dim = 1 : i64, channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "y">]>, use_global_device_ids}> : (tensor<8x4xf32>) -> tensor<8x16xf32>
    return %1, %0#1, %2 : tensor<32x4xf32>, tensor<32x2xbf16>, tensor<8x16xf32>
  }
}
