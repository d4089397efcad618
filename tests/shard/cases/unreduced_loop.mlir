// An argument of a loop is reduced where the loop returns it.
module {
  sdy.mesh @mesh = <["x"=2, "y"=2, "z"=2]>
  func.func @main(%arg0: tensor<8xf32>, %arg1: tensor<768xf32>, %arg2: tensor<i1>, %arg3: tensor<24x32x8xf32>) -> tensor<768xf32> {
    %0:3 = "stablehlo.while"(%arg0, %arg3, %arg0) ({
    ^bb0(%arg4: tensor<8xf32>, %arg5: tensor<24x32x8xf32>, %arg6: tensor<8xf32>):
      stablehlo.return %arg2 : tensor<i1>
    }, {
    ^bb0(%arg7: tensor<8xf32>, %arg8: tensor<24x32x8xf32>, %arg9: tensor<8xf32>):
      stablehlo.return %arg9, %arg8, %arg9 : tensor<8xf32>, tensor<24x32x8xf32>, tensor<8xf32>
    }) {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"y"}]>, <@mesh, [{"y"}, {"z"}, {}]>, <@mesh, [{"x", ?}p2], unreduced={"z"}>]>} : (tensor<8xf32>, tensor<24x32x8xf32>, tensor<8xf32>) -> (tensor<8xf32>, tensor<24x32x8xf32>, tensor<8xf32>)
    return %arg1 : tensor<768xf32>
  }
}
