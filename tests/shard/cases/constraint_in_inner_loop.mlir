// A constraint that moves out of two loops, and is read by both carried values.
module {
  sdy.mesh @mesh = <["x"=2, "y"=4]>
  func.func @main(%arg0: tensor<2x6xf32>, %arg1: tensor<1x6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}, %arg2: tensor<1x1x1xf32>, %arg3: tensor<i1>) -> tensor<1x1x1xf32> {
    %0:2 = "stablehlo.while"(%arg0, %arg1) ({
    ^bb0(%arg4: tensor<2x6xf32>, %arg5: tensor<1x6xf32>):
      stablehlo.return %arg3 : tensor<i1>
    }, {
    ^bb0(%arg6: tensor<2x6xf32>, %arg7: tensor<1x6xf32>):
      %1:2 = "stablehlo.while"(%arg1, %arg7) ({
      ^bb0(%arg8: tensor<1x6xf32>, %arg9: tensor<1x6xf32>):
        stablehlo.return %arg3 : tensor<i1>
      }, {
      ^bb0(%arg10: tensor<1x6xf32>, %arg11: tensor<1x6xf32>):
        %2 = "sdy.sharding_constraint"(%arg7) <{sharding = #sdy.sharding<@mesh, [{}, {"y"}p1]>}> : (tensor<1x6xf32>) -> tensor<1x6xf32>
        stablehlo.return %2, %2 : tensor<1x6xf32>, tensor<1x6xf32>
      }) : (tensor<1x6xf32>, tensor<1x6xf32>) -> (tensor<1x6xf32>, tensor<1x6xf32>)
      stablehlo.return %arg6, %1#1 : tensor<2x6xf32>, tensor<1x6xf32>
    }) : (tensor<2x6xf32>, tensor<1x6xf32>) -> (tensor<2x6xf32>, tensor<1x6xf32>)
    return %arg2 : tensor<1x1x1xf32>
  }
}
