module {
  func.func @main(%arg0: tensor<2xf32>, %arg1: tensor<2xf32>) -> tensor<2xf32> {
    %0 = stablehlo.add %arg0, %arg1 : tensor<2xf32>
    %1 = stablehlo.add %arg0, %arg1 : tensor<2xf32>
    %2 = stablehlo.add %arg1, %arg0 : tensor<2xf32>
    %3 = stablehlo.multiply %0, %1 : tensor<2xf32>
    %4 = stablehlo.multiply %1, %0 : tensor<2xf32>
    %5 = stablehlo.subtract %3, %4 : tensor<2xf32>
    %6 = stablehlo.add %5, %2 : tensor<2xf32>
    return %6 : tensor<2xf32>
  }
}
// becomes
module {
  func.func @main(%arg0: tensor<2xf32>, %arg1: tensor<2xf32>) -> tensor<2xf32> {
    %0 = stablehlo.add %arg0, %arg1 : tensor<2xf32>
    %1 = stablehlo.add %arg1, %arg0 : tensor<2xf32>
    %2 = stablehlo.multiply %0, %0 : tensor<2xf32>
    %3 = stablehlo.subtract %2, %2 : tensor<2xf32>
    %4 = stablehlo.add %3, %1 : tensor<2xf32>
    return %4 : tensor<2xf32>
  }
}
