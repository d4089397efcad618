// The dead reader stands before the abs, and is gone when that is met.
module {
  sdy.mesh @mesh = <["x"=2, "y"=4, "z"=2]>
  func.func @main(%arg0: tensor<4x8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}, {}]>}, %arg1: tensor<4x8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}, {}]>}) -> (tensor<4x8x4xf32>, tensor<4x8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}, {"x"}]>}) {
    %0 = stablehlo.add %arg0, %arg1 : tensor<4x8x4xf32>
    %2 = stablehlo.tanh %0 : tensor<4x8x4xf32>
    %4 = stablehlo.cosine %2 : tensor<4x8x4xf32>
    %3 = stablehlo.abs %2 : tensor<4x8x4xf32>
    return %0, %3 : tensor<4x8x4xf32>, tensor<4x8x4xf32>
  }
}
