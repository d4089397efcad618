// machine: h100
module {
  sdy.mesh @mesh = <["x"=2]>
  func.func @main(%arg0: tensor<8192x4096xbf16>, %arg1: tensor<4096x8192xbf16>) -> tensor<4096x8192xbf16> {
    %0 = stablehlo.dot_general %arg0, %arg1, contracting_dims = [1] x [0] : (tensor<8192x4096xbf16>, tensor<4096x8192xbf16>) -> tensor<8192x8192xbf16>
    %1 = "stablehlo.reduce_scatter"(%0) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "x">]>, scatter_dimension = 0 : i64, use_global_device_ids}> ({
    ^bb0(%arg2: tensor<bf16>, %arg3: tensor<bf16>):
      %2 = stablehlo.add %arg2, %arg3 : tensor<bf16>
      stablehlo.return %2 : tensor<bf16>
    }) : (tensor<8192x8192xbf16>) -> tensor<4096x8192xbf16>
    return %1 : tensor<4096x8192xbf16>
  }
}
// becomes
module {
  sdy.mesh @mesh = <["x"=2]>
  func.func @main(%arg0: tensor<8192x4096xbf16>, %arg1: tensor<4096x8192xbf16>) -> tensor<4096x8192xbf16> {
    %0 = "stablehlo.composite"() <{composite_attributes = {axes = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "x">]>}, decomposition = @weft.axis_index.0, name = "weft.axis_index"}> : () -> tensor<i32>
    %1 = stablehlo.constant dense<1> : tensor<i32>
    %2 = stablehlo.add %0, %1 : tensor<i32>
    %3 = stablehlo.constant dense<2> : tensor<i32>
    %4 = stablehlo.remainder %2, %3 : tensor<i32>
    %5 = stablehlo.constant dense<4096> : tensor<i32>
    %6 = stablehlo.multiply %4, %5 : tensor<i32>
    %7 = stablehlo.constant dense<0> : tensor<i32>
    %8 = stablehlo.dynamic_slice %arg0, %6, %7, sizes = [4096, 4096] : (tensor<8192x4096xbf16>, tensor<i32>, tensor<i32>) -> tensor<4096x4096xbf16>
    %9 = stablehlo.dot_general %8, %arg1, contracting_dims = [1] x [0] : (tensor<4096x4096xbf16>, tensor<4096x8192xbf16>) -> tensor<4096x8192xbf16>
    %10 = "stablehlo.composite"(%9) <{composite_attributes = {axes = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "x">]>, sources = array<i64: 1, 0>}, decomposition = @weft.collective_permute.1, name = "weft.collective_permute"}> : (tensor<4096x8192xbf16>) -> tensor<4096x8192xbf16>
    %11 = stablehlo.constant dense<4096> : tensor<i32>
    %12 = stablehlo.multiply %0, %11 : tensor<i32>
    %13 = stablehlo.constant dense<0> : tensor<i32>
    %14 = stablehlo.dynamic_slice %arg0, %12, %13, sizes = [4096, 4096] : (tensor<8192x4096xbf16>, tensor<i32>, tensor<i32>) -> tensor<4096x4096xbf16>
    %15 = stablehlo.dot_general %14, %arg1, contracting_dims = [1] x [0] : (tensor<4096x4096xbf16>, tensor<4096x8192xbf16>) -> tensor<4096x8192xbf16>
    %16 = stablehlo.add %10, %15 : tensor<4096x8192xbf16>
    return %16 : tensor<4096x8192xbf16>
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
