// machine: h100
module {
  sdy.mesh @mesh = <["x"=2]>
  func.func @main(%arg0: tensor<4096x8192xbf16>, %arg1: tensor<8192x8192xbf16>) -> tensor<8192x8192xbf16> {
    %0 = "stablehlo.all_gather"(%arg0) <{all_gather_dim = 0 : i64, channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "x">]>, use_global_device_ids}> : (tensor<4096x8192xbf16>) -> tensor<8192x8192xbf16>
    %1 = stablehlo.dot_general %0, %arg1, contracting_dims = [1] x [0] : (tensor<8192x8192xbf16>, tensor<8192x8192xbf16>) -> tensor<8192x8192xbf16>
    return %1 : tensor<8192x8192xbf16>
  }
}
// becomes
module {
  sdy.mesh @mesh = <["x"=2]>
  func.func @main(%arg0: tensor<4096x8192xbf16>, %arg1: tensor<8192x8192xbf16>) -> tensor<8192x8192xbf16> {
    %0 = "stablehlo.composite"() <{composite_attributes = {axes = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "x">]>}, decomposition = @weft.axis_index.0, name = "weft.axis_index"}> : () -> tensor<i32>
    %1 = stablehlo.constant dense<0.000000e+00> : tensor<8192x8192xbf16>
    %2 = "stablehlo.composite"(%arg0) <{composite_attributes = {axes = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "x">]>, sources = array<i64: 1, 0>}, decomposition = @weft.collective_permute.1, name = "weft.collective_permute"}> : (tensor<4096x8192xbf16>) -> tensor<4096x8192xbf16>
    %3 = stablehlo.dot_general %arg0, %arg1, contracting_dims = [1] x [0] : (tensor<4096x8192xbf16>, tensor<8192x8192xbf16>) -> tensor<4096x8192xbf16>
    %4 = stablehlo.constant dense<4096> : tensor<i32>
    %5 = stablehlo.multiply %0, %4 : tensor<i32>
    %6 = stablehlo.constant dense<0> : tensor<i32>
    %7 = stablehlo.dynamic_update_slice %1, %3, %5, %6 : (tensor<8192x8192xbf16>, tensor<4096x8192xbf16>, tensor<i32>, tensor<i32>) -> tensor<8192x8192xbf16>
    %8 = stablehlo.constant dense<1> : tensor<i32>
    %9 = stablehlo.add %0, %8 : tensor<i32>
    %10 = stablehlo.constant dense<2> : tensor<i32>
    %11 = stablehlo.remainder %9, %10 : tensor<i32>
    %12 = stablehlo.dot_general %2, %arg1, contracting_dims = [1] x [0] : (tensor<4096x8192xbf16>, tensor<8192x8192xbf16>) -> tensor<4096x8192xbf16>
    %13 = stablehlo.constant dense<4096> : tensor<i32>
    %14 = stablehlo.multiply %11, %13 : tensor<i32>
    %15 = stablehlo.constant dense<0> : tensor<i32>
    %16 = stablehlo.dynamic_update_slice %7, %12, %14, %15 : (tensor<8192x8192xbf16>, tensor<4096x8192xbf16>, tensor<i32>, tensor<i32>) -> tensor<8192x8192xbf16>
    return %16 : tensor<8192x8192xbf16>
  }
  func.func private @weft.axis_index.0() -> tensor<i32> {
    %0 = stablehlo.partition_id : tensor<ui32>
    %1 = stablehlo.convert %0 : (tensor<ui32>) -> tensor<i32>
    %2 = stablehlo.constant dense<2> : tensor<i32>
    %3 = stablehlo.remainder %1, %2 : tensor<i32>
    return %3 : tensor<i32>
  }
  func.func private @weft.collective_permute.1(%arg0: tensor<4096x8192xbf16>) -> tensor<4096x8192xbf16> {
    %0 = "stablehlo.collective_permute"(%arg0) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, source_target_pairs = dense<[[0, 1], [1, 0]]> : tensor<2x2xi64>}> : (tensor<4096x8192xbf16>) -> tensor<4096x8192xbf16>
    return %0 : tensor<4096x8192xbf16>
  }
}
