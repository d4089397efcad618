module {
  func.func @main(%arg0: tensor<2xf32>) -> tensor<2xf32> {
    %0 = stablehlo.add %arg0, %arg0 : tensor<2xf32>
    %1 = stablehlo.multiply %0, %arg0 : tensor<2xf32>
    %2 = stablehlo.subtract %1, %0 : tensor<2xf32>
    %3 = stablehlo.negate %arg0 : tensor<2xf32>
    return %3 : tensor<2xf32>
  }
}
// becomes
module {
  func.func @main(%arg0: tensor<2xf32>) -> tensor<2xf32> {
    %0 = stablehlo.negate %arg0 : tensor<2xf32>
    return %0 : tensor<2xf32>
  }
}
