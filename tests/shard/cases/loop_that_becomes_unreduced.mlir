// An argument of a loop becomes unreduced where the loop returns it.
module {
  sdy.mesh @mesh = <["x"=1, "y"=4, "z"=2]>
  func.func @main(%arg0: tensor<3x3xf32>, %arg1: tensor<1x8x12xf32>, %arg2: tensor<i1>) -> tensor<1x8x12xf32> {
    %0:2 = "stablehlo.while"(%arg0, %arg0) ({
    ^bb0(%arg3: tensor<3x3xf32>, %arg4: tensor<3x3xf32>):
      stablehlo.return %arg2 : tensor<i1>
    }, {
    ^bb0(%arg5: tensor<3x3xf32>, %arg6: tensor<3x3xf32>):
      %1 = "sdy.sharding_constraint"(%arg6) <{sharding = #sdy.sharding<@mesh, [{}, {"y"}], unreduced={"z"}>}> : (tensor<3x3xf32>) -> tensor<3x3xf32>
      stablehlo.return %1, %arg5 : tensor<3x3xf32>, tensor<3x3xf32>
    }) : (tensor<3x3xf32>, tensor<3x3xf32>) -> (tensor<3x3xf32>, tensor<3x3xf32>)
    return %arg1 : tensor<1x8x12xf32>
  }
}
