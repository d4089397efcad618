module {
  func.func @main(%arg0: tensor<4xf32>, %arg1: tensor<4xi1>, %arg2: tensor<4xbf16>) -> (tensor<4xf32>, tensor<4xbf16>) {
    %0 = stablehlo.convert %arg1 : (tensor<4xi1>) -> tensor<4xf32>
    %1 = stablehlo.multiply %0, %arg0 : tensor<4xf32>
    %2 = stablehlo.convert %arg1 : (tensor<4xi1>) -> tensor<4xbf16>
    %3 = stablehlo.multiply %arg2, %2 : tensor<4xbf16>
    return %1, %3 : tensor<4xf32>, tensor<4xbf16>
  }
}

// -----  whole values

module {
  func.func @main(%arg0: tensor<4xf32>, %arg1: tensor<4xi1>, %arg2: tensor<4xbf16>) -> (tensor<4xf32>, tensor<4xbf16>) {
    %0 = stablehlo.convert %arg1 : (tensor<4xi1>) -> tensor<4xf32>
    %1 = stablehlo.constant dense<0.000000e+00> : tensor<4xf32>
    %2 = stablehlo.select %arg1, %arg0, %1 : (tensor<4xi1>, tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
    %3 = stablehlo.convert %arg1 : (tensor<4xi1>) -> tensor<4xbf16>
    %4 = stablehlo.multiply %arg2, %3 : tensor<4xbf16>
    return %2, %4 : tensor<4xf32>, tensor<4xbf16>
  }
}
