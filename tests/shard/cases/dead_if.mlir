// A branch that nobody reads is erased before what it holds is met.
module {
  sdy.mesh @mesh = <["x"=4, "y"=8]>
  func.func @main(%arg0: tensor<8x4x4xf32>, %arg1: tensor<24xf32>, %arg2: tensor<5xf32>, %arg3: tensor<i1>) -> tensor<24xf32> {
    %0:2 = "stablehlo.if"(%arg3) ({
      %1 = stablehlo.add %arg2, %arg2 {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"y":(1)4, "x", ?}]>]>} : tensor<5xf32>
      stablehlo.return %arg0, %arg0 : tensor<8x4x4xf32>, tensor<8x4x4xf32>
    }, {
      stablehlo.return %arg0, %arg0 : tensor<8x4x4xf32>, tensor<8x4x4xf32>
    }) : (tensor<i1>) -> (tensor<8x4x4xf32>, tensor<8x4x4xf32>)
    return %arg1 : tensor<24xf32>
  }
}
