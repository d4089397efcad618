// The result of a call is reduced before it is resharded.
module {
  sdy.mesh @mesh = <["x"=2, "y"=2, "z"=2]>
  func.func private @f0(%arg0: tensor<15x5x9xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}, {"x"}], unreduced={"z"}>}, %arg1: tensor<6x8xf32>, %arg2: tensor<4x2x12xf32>) -> tensor<15x5x9xf32> {
    return %arg0 : tensor<15x5x9xf32>
  }
  func.func @main(%arg0: tensor<15x5x9xf32>, %arg1: tensor<6x8xf32>, %arg2: tensor<4x2x12xf32>) -> tensor<15x5x9xf32> {
    %0 = "func.call"(%arg0, %arg1, %arg2) <{callee = @f0}> {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"y"}, {?}, {}]>]>} : (tensor<15x5x9xf32>, tensor<6x8xf32>, tensor<4x2x12xf32>) -> tensor<15x5x9xf32>
    return %0 : tensor<15x5x9xf32>
  }
}
