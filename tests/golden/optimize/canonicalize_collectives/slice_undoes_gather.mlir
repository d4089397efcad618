module {
  sdy.mesh @mesh = <["x"=2, "y"=4]>
  func.func @main(%arg0: tensor<2x4xf32>) -> (tensor<2x4xf32>, tensor<8x4xf32>) {
    %0 = "stablehlo.all_gather"(%arg0) <{all_gather_dim = 0 : i64, channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "y">]>, use_global_device_ids}> : (tensor<2x4xf32>) -> tensor<8x4xf32>
    %1 = "stablehlo.composite"(%0) <{composite_attributes = {pieces = #sdy.sharding<@mesh, [{"y"}, {}]>}, decomposition = @weft.all_slice.0, name = "weft.all_slice"}> : (tensor<8x4xf32>) -> tensor<2x4xf32>
    return %1, %0 : tensor<2x4xf32>, tensor<8x4xf32>
  }
  func.func private @weft.all_slice.0(%arg0: tensor<8x4xf32>) -> tensor<2x4xf32> {
    %0 = stablehlo.partition_id : tensor<ui32>
    %1 = stablehlo.convert %0 : (tensor<ui32>) -> tensor<i32>
    %2 = stablehlo.constant dense<4> : tensor<i32>
    %3 = stablehlo.remainder %1, %2 : tensor<i32>
    %4 = stablehlo.constant dense<2> : tensor<i32>
    %5 = stablehlo.multiply %3, %4 : tensor<i32>
    %6 = stablehlo.constant dense<0> : tensor<i32>
    %7 = stablehlo.dynamic_slice %arg0, %5, %6, sizes = [2, 4] : (tensor<8x4xf32>, tensor<i32>, tensor<i32>) -> tensor<2x4xf32>
    return %7 : tensor<2x4xf32>
  }
}
// becomes
module {
  sdy.mesh @mesh = <["x"=2, "y"=4]>
  func.func @main(%arg0: tensor<2x4xf32>) -> (tensor<2x4xf32>, tensor<8x4xf32>) {
    %0 = "stablehlo.all_gather"(%arg0) <{all_gather_dim = 0 : i64, channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "y">]>, use_global_device_ids}> : (tensor<2x4xf32>) -> tensor<8x4xf32>
    return %arg0, %0 : tensor<2x4xf32>, tensor<8x4xf32>
  }
}
