module {
  sdy.mesh @mesh = <["x"=2, "y"=4]>
  func.func @main(%arg0: tensor<8x4xf32>, %arg1: tensor<2xi32>) -> (tensor<8x4xf32>, tensor<2xi32>) {
    %0 = "stablehlo.composite"(%arg0) <{composite_attributes = {axes = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "y">]>, sources = array<i64: 1, 2, 3, 0>}, decomposition = @weft.collective_permute.0, name = "weft.collective_permute"}> : (tensor<8x4xf32>) -> tensor<8x4xf32>
    %1 = "stablehlo.composite"(%arg1) <{composite_attributes = {axes = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "y">]>, sources = array<i64: 1, 2, 3, 0>}, decomposition = @weft.collective_permute.1, name = "weft.collective_permute"}> : (tensor<2xi32>) -> tensor<2xi32>
    return %0, %1 : tensor<8x4xf32>, tensor<2xi32>
  }
  func.func private @weft.collective_permute.0(%arg0: tensor<8x4xf32>) -> tensor<8x4xf32> {
    %0 = "stablehlo.collective_permute"(%arg0) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, source_target_pairs = dense<[[0, 3], [1, 0], [2, 1], [3, 2], [4, 7], [5, 4], [6, 5], [7, 6]]> : tensor<8x2xi64>}> : (tensor<8x4xf32>) -> tensor<8x4xf32>
    return %0 : tensor<8x4xf32>
  }
  func.func private @weft.collective_permute.1(%arg0: tensor<2xi32>) -> tensor<2xi32> {
    %0 = "stablehlo.collective_permute"(%arg0) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, source_target_pairs = dense<[[0, 3], [1, 0], [2, 1], [3, 2], [4, 7], [5, 4], [6, 5], [7, 6]]> : tensor<8x2xi64>}> : (tensor<2xi32>) -> tensor<2xi32>
    return %0 : tensor<2xi32>
  }
}
// becomes
module {
  sdy.mesh @mesh = <["x"=2, "y"=4]>
  func.func @main(%arg0: tensor<8x4xf32>, %arg1: tensor<2xi32>) -> (tensor<8x4xf32>, tensor<2xi32>) {
    %0:2 = "stablehlo.composite"(%arg0, %arg1) <{composite_attributes = {axes = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "y">]>, sources = array<i64: 1, 2, 3, 0>}, decomposition = @weft.collective_permute.0, name = "weft.collective_permute"}> : (tensor<8x4xf32>, tensor<2xi32>) -> (tensor<8x4xf32>, tensor<2xi32>)
    return %0#0, %0#1 : tensor<8x4xf32>, tensor<2xi32>
  }
  func.func private @weft.collective_permute.0(%arg0: tensor<8x4xf32>, %arg1: tensor<2xi32>) -> (tensor<8x4xf32>, tensor<2xi32>) {
    %0 = "stablehlo.collective_permute"(%arg0) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, source_target_pairs = dense<[[0, 3], [1, 0], [2, 1], [3, 2], [4, 7], [5, 4], [6, 5], [7, 6]]> : tensor<8x2xi64>}> : (tensor<8x4xf32>) -> tensor<8x4xf32>
    %1 = "stablehlo.collective_permute"(%arg1) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, source_target_pairs = dense<[[0, 3], [1, 0], [2, 1], [3, 2], [4, 7], [5, 4], [6, 5], [7, 6]]> : tensor<8x2xi64>}> : (tensor<2xi32>) -> tensor<2xi32>
    return %0, %1 : tensor<8x4xf32>, tensor<2xi32>
  }
}
