// The same value as two arguments of a call.
sdy.mesh @mesh = <["x"=2, "y"=4]>
  func.func private @f0(%arg0: tensor<8x3xf32>, %arg3: tensor<8x3xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"y"}]>}) -> (tensor<8x3xf32>, tensor<8x3xf32>) {
    %s = stablehlo.sine %arg0 {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x","y"}, {}]>]>} : tensor<8x3xf32>
    return %arg3, %s : tensor<8x3xf32>, tensor<8x3xf32>
  }
  func.func @main(%arg0: tensor<8x3xf32>, %b: tensor<8x3xf32>) -> (tensor<8x3xf32>, tensor<8x3xf32>) {
    %0:2 = func.call @f0(%arg0, %arg0) : (tensor<8x3xf32>, tensor<8x3xf32>) -> (tensor<8x3xf32>, tensor<8x3xf32>)
    return %0#0, %0#1 : tensor<8x3xf32>, tensor<8x3xf32>
  }
