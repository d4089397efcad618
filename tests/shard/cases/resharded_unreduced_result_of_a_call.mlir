// The result of a call is resharded, and is unreduced then.
module {
  sdy.mesh @mesh = <["x"=4, "y"=8]>
  func.func private @f0(%arg0: tensor<8x4xf32>, %arg1: tensor<1x24xf32>) -> (tensor<1x24xf32>, tensor<2x4x2x2xf32>) {
    %0 = stablehlo.exponential %arg1 {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {"y":(1)2}]>]>} : tensor<1x24xf32>
    %1 = stablehlo.reshape %arg0 : (tensor<8x4xf32>) -> tensor<2x4x2x2xf32>
    return %0, %1 : tensor<1x24xf32>, tensor<2x4x2x2xf32>
  }
  func.func @main(%arg0: tensor<1x24xf32>, %arg1: tensor<8x4xf32>, %arg2: tensor<f32>) -> tensor<f32> {
    %0:2 = "func.call"(%arg1, %arg0) <{callee = @f0}> {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x":(1)2}, {}], unreduced={"x":(2)2}>, <@mesh, [{}, {?}, {?}p1, {"y", ?}]>]>} : (tensor<8x4xf32>, tensor<1x24xf32>) -> (tensor<1x24xf32>, tensor<2x4x2x2xf32>)
    return %arg2 : tensor<f32>
  }
}
