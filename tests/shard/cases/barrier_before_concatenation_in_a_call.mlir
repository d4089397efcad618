// The same in a function, whose argument does not divide evenly.
module {
  sdy.mesh @mesh = <["x"=2, "y"=2, "z"=2]>
  func.func private @f0(%arg0: tensor<2x8x2xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"z", "x"}, {"y"}, {?}]>}) -> tensor<2x8x4xf32> {
    %0 = "sdy.propagation_barrier"(%arg0) <{allowed_direction = 2 : i32}> : (tensor<2x8x2xf32>) -> tensor<2x8x2xf32>
    %1 = stablehlo.concatenate %arg0, %0, dim = 2 : (tensor<2x8x2xf32>, tensor<2x8x2xf32>) -> tensor<2x8x4xf32>
    return %1 : tensor<2x8x4xf32>
  }
  func.func @main(%arg0: tensor<2x8x2xf32>, %arg1: tensor<8xf32>) -> tensor<8xf32> {
    %0 = "func.call"(%arg0) <{callee = @f0}> : (tensor<2x8x2xf32>) -> tensor<2x8x4xf32>
    return %arg1 : tensor<8xf32>
  }
}
