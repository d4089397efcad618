// machine: h100
module {
  sdy.mesh @mesh = <["x"=2]>
  func.func @main(%arg0: tensor<4096x32768xbf16>, %arg1: tensor<65536x1024xbf16>) -> tensor<4096x1024xbf16> {
    %0 = "stablehlo.all_gather"(%arg0) <{all_gather_dim = 1 : i64, channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "x">]>, use_global_device_ids}> : (tensor<4096x32768xbf16>) -> tensor<4096x65536xbf16>
    %1 = stablehlo.dot_general %0, %arg1, contracting_dims = [1] x [0] : (tensor<4096x65536xbf16>, tensor<65536x1024xbf16>) -> tensor<4096x1024xbf16>
    return %1 : tensor<4096x1024xbf16>
  }
}
// becomes
module {
  sdy.mesh @mesh = <["x"=2]>
  func.func @main(%arg0: tensor<4096x32768xbf16>, %arg1: tensor<65536x1024xbf16>) -> tensor<4096x1024xbf16> {
    %0 = "stablehlo.composite"() <{composite_attributes = {axes = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "x">]>}, decomposition = @weft.axis_index.0, name = "weft.axis_index"}> : () -> tensor<i32>
    %1 = "stablehlo.composite"(%arg0) <{composite_attributes = {axes = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "x">]>, sources = array<i64: 1, 0>}, decomposition = @weft.collective_permute.1, name = "weft.collective_permute"}> : (tensor<4096x32768xbf16>) -> tensor<4096x32768xbf16>
    %2 = stablehlo.constant dense<32768> : tensor<i32>
    %3 = stablehlo.multiply %0, %2 : tensor<i32>
    %4 = stablehlo.constant dense<0> : tensor<i32>
    %5 = stablehlo.dynamic_slice %arg1, %3, %4, sizes = [32768, 1024] : (tensor<65536x1024xbf16>, tensor<i32>, tensor<i32>) -> tensor<32768x1024xbf16>
    %6 = stablehlo.dot_general %arg0, %5, contracting_dims = [1] x [0] : (tensor<4096x32768xbf16>, tensor<32768x1024xbf16>) -> tensor<4096x1024xf32>
    %7 = stablehlo.constant dense<1> : tensor<i32>
    %8 = stablehlo.add %0, %7 : tensor<i32>
    %9 = stablehlo.constant dense<2> : tensor<i32>
    %10 = stablehlo.remainder %8, %9 : tensor<i32>
    %11 = stablehlo.constant dense<32768> : tensor<i32>
    %12 = stablehlo.multiply %10, %11 : tensor<i32>
    %13 = stablehlo.constant dense<0> : tensor<i32>
    %14 = stablehlo.dynamic_slice %arg1, %12, %13, sizes = [32768, 1024] : (tensor<65536x1024xbf16>, tensor<i32>, tensor<i32>) -> tensor<32768x1024xbf16>
    %15 = stablehlo.dot_general %1, %14, contracting_dims = [1] x [0] : (tensor<4096x32768xbf16>, tensor<32768x1024xbf16>) -> tensor<4096x1024xf32>
    %16 = stablehlo.add %6, %15 : tensor<4096x1024xf32>
    %17 = stablehlo.convert %16 : (tensor<4096x1024xf32>) -> tensor<4096x1024xbf16>
    return %17 : tensor<4096x1024xbf16>
  }
  func.func private @weft.axis_index.0() -> tensor<i32> {
    %0 = stablehlo.partition_id : tensor<ui32>
    %1 = stablehlo.convert %0 : (tensor<ui32>) -> tensor<i32>
    %2 = stablehlo.constant dense<2> : tensor<i32>
    %3 = stablehlo.remainder %1, %2 : tensor<i32>
    return %3 : tensor<i32>
  }
  func.func private @weft.collective_permute.1(%arg0: tensor<4096x32768xbf16>) -> tensor<4096x32768xbf16> {
    %0 = "stablehlo.collective_permute"(%arg0) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, source_target_pairs = dense<[[0, 1], [1, 0]]> : tensor<2x2xi64>}> : (tensor<4096x32768xbf16>) -> tensor<4096x32768xbf16>
    return %0 : tensor<4096x32768xbf16>
  }
}
