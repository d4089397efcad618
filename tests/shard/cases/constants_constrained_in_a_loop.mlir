// The same, and a constraint on one of the copies.
module {
  sdy.mesh @mesh = <["x"=4, "y"=8]>
  func.func @main(%arg0: tensor<6x4xf32>, %arg1: tensor<i1>) -> tensor<6x4xf32> {
    %0 = stablehlo.iota dim = 0 : tensor<2xf32>
    %1 = "stablehlo.while"(%0) ({
    ^bb0(%arg2: tensor<2xf32>):
      stablehlo.return %arg1 : tensor<i1>
    }, {
    ^bb0(%arg3: tensor<2xf32>):
      %2 = "sdy.sharding_constraint"(%0) <{sharding = #sdy.sharding<@mesh, [{"x"}]>}> : (tensor<2xf32>) -> tensor<2xf32>
      stablehlo.return %2 : tensor<2xf32>
    }) : (tensor<2xf32>) -> tensor<2xf32>
    return %arg0 : tensor<6x4xf32>
  }
}
