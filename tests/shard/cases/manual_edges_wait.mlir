// The edge into a manual computation is not told of changes of its operand.
sdy.mesh @mesh = <["x"=2, "y"=4, "z"=2]>
  func.func @main(%arg0: tensor<8x3xf32>, %b: tensor<8x3xf32>) -> (tensor<8x3xf32>, tensor<8x3xf32>) {
    %0 = sdy.manual_computation(%arg0) in_shardings=[<@mesh, [{?}, {?}]>] out_shardings=[<@mesh, [{?}, {?}]>] manual_axes={"z"} (%u: tensor<8x3xf32>) {
    %s = stablehlo.sine %u : tensor<8x3xf32>
     sdy.return %s : tensor<8x3xf32>
  } : (tensor<8x3xf32>) -> (tensor<8x3xf32>)
    %1 = stablehlo.optimization_barrier {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {"y"}]>]>} %arg0 : tensor<8x3xf32>
    %2 = stablehlo.cosine %0 {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x","y"}, {}]>]>} : tensor<8x3xf32>
    return %2, %1 : tensor<8x3xf32>, tensor<8x3xf32>
  }
