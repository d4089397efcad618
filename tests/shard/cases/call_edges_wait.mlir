// The edge into a call is not told of changes of its operand.
sdy.mesh @mesh = <["x"=2, "y"=4]>
  func.func private @f0(%arg0: tensor<8x3xf32>) -> (tensor<8x3xf32>) {
    %s = stablehlo.sine %arg0 : tensor<8x3xf32>
    return %s : tensor<8x3xf32>
  }
  func.func private @g(%arg0: tensor<8x3xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"y"}]>}) -> (tensor<8x3xf32>) {
    return %arg0 : tensor<8x3xf32>
  }
  func.func @main(%arg0: tensor<8x3xf32>, %b: tensor<8x3xf32>) -> (tensor<8x3xf32>, tensor<8x3xf32>) {
    %0 = func.call @f0(%arg0) : (tensor<8x3xf32>) -> (tensor<8x3xf32>)
    %1 = func.call @g(%arg0) : (tensor<8x3xf32>) -> (tensor<8x3xf32>)
    %2 = stablehlo.cosine %0 {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x","y"}, {}]>]>} : tensor<8x3xf32>
    return %2, %1 : tensor<8x3xf32>, tensor<8x3xf32>
  }
