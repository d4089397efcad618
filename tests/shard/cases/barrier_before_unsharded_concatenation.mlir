// The same where the barrier stops everything.
module {
  sdy.mesh @mesh = <["x"=1, "y"=4, "z"=2]>
  func.func @main(%arg0: tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"z"}]>}, %arg1: tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{?}p0]>}, %arg2: tensor<32xf32>) -> tensor<40xf32> {
    %0 = "sdy.propagation_barrier"(%arg0) <{allowed_direction = 0 : i32}> : (tensor<4xf32>) -> tensor<4xf32>
    %1 = stablehlo.concatenate %arg1, %0, %arg2, dim = 0 : (tensor<4xf32>, tensor<4xf32>, tensor<32xf32>) -> tensor<40xf32>
    return %1 : tensor<40xf32>
  }
}
