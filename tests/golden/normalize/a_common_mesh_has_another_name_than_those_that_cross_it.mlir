module {
  sdy.mesh @mesh = <["p"=2, "q"=3]>
  sdy.mesh @mesh_of_all = <["r"=3, "s"=2]>
  func.func @main(%arg0: tensor<24x24xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"p"}, {"q"}]>}, %arg1: tensor<24x24xf32> {sdy.sharding = #sdy.sharding<@mesh_of_all, [{"r"}, {"s"}]>}) -> tensor<24x24xf32> {
    %0 = stablehlo.add %arg0, %arg1 : tensor<24x24xf32>
    return %0 : tensor<24x24xf32>
  }
}

// -----  whole values

module {
  sdy.mesh @mesh_of_both = <["p"=2, "q"=3]>
  func.func @main(%arg0: tensor<24x24xf32> {sdy.sharding = #sdy.sharding<@mesh_of_both, [{"p"}, {"q"}]>}, %arg1: tensor<24x24xf32> {sdy.sharding = #sdy.sharding<@mesh_of_both, [{?}, {?}]>}) -> tensor<24x24xf32> {
    %0 = stablehlo.add %arg0, %arg1 : tensor<24x24xf32>
    return %0 : tensor<24x24xf32>
  }
}

// -----  pieces

module {
  sdy.mesh @mesh_of_both = <["p"=2, "q"=3]>
  func.func @main(%arg0: tensor<24x24xf32> {sdy.sharding = #sdy.sharding<@mesh_of_both, [{"p"}, {"q"}]>}, %arg1: tensor<48x12xf32> {weft.caller_sharding = #sdy.sharding<mesh<["r"=3, "s"=2]>, [{"r"}, {"s"}]>, sdy.sharding = #sdy.sharding<@mesh_of_both, [{"p", "q"}, {}]>}) -> (tensor<24x24xf32> {sdy.sharding = #sdy.sharding<@mesh_of_both, [{}, {}]>}) {
    %0 = stablehlo.reshape %arg1 : (tensor<48x12xf32>) -> tensor<3x2x8x12xf32>
    %1 = stablehlo.slice %0 [0:3, 0:2, 0:8, 0:12] : (tensor<3x2x8x12xf32>) -> tensor<3x2x8x12xf32>
    %2 = stablehlo.transpose %1, dims = [0, 2, 1, 3] : (tensor<3x2x8x12xf32>) -> tensor<3x8x2x12xf32>
    %3 = stablehlo.reshape %2 : (tensor<3x8x2x12xf32>) -> tensor<24x24xf32>
    %4 = "func.call"(%arg0, %3) <{callee = @main.whole}> : (tensor<24x24xf32>, tensor<24x24xf32>) -> tensor<24x24xf32>
    return %4 : tensor<24x24xf32>
  }
  func.func private @main.whole(%arg0: tensor<24x24xf32>, %arg1: tensor<24x24xf32>) -> tensor<24x24xf32> {
    %0 = stablehlo.add %arg0, %arg1 : tensor<24x24xf32>
    return %0 : tensor<24x24xf32>
  }
}
