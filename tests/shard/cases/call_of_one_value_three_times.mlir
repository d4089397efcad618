// The same value as three arguments of a call.
sdy.mesh @mesh = <["x"=2, "y"=4, "z"=2]>
  func.func private @f0(%u: tensor<8x3xf32>, %w: tensor<8x3xf32>, %v: tensor<8x3xf32> {sdy.sharding=#sdy.sharding<@mesh, [{}, {"y"}]>}) -> (tensor<8x3xf32>,tensor<8x3xf32>,tensor<8x3xf32>) {
    %s = stablehlo.sine %u {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x","y"}, {}]>]>} : tensor<8x3xf32>
    %t = stablehlo.sine %w : tensor<8x3xf32>
    return %s,%t,%v : tensor<8x3xf32>, tensor<8x3xf32>, tensor<8x3xf32>
  }
  func.func @main(%arg0: tensor<8x3xf32>, %b: tensor<8x3xf32>) -> (tensor<8x3xf32>, tensor<8x3xf32>, tensor<8x3xf32>) {
    %0:3 = func.call @f0(%arg0, %arg0, %arg0) : (tensor<8x3xf32>, tensor<8x3xf32>, tensor<8x3xf32>) -> (tensor<8x3xf32>, tensor<8x3xf32>, tensor<8x3xf32>)
    return %0#0, %0#1, %0#2 : tensor<8x3xf32>, tensor<8x3xf32>, tensor<8x3xf32>
  }
