module {
  func.func @main(%arg0: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>) {
    %0 = stablehlo.constant dense<0.000000e+00> : tensor<4xf32>
    %1 = stablehlo.constant dense<-0.000000e+00> : tensor<4xf32>
    %2 = stablehlo.constant dense<1.000000e+00> : tensor<4xf32>
    %3 = stablehlo.add %arg0, %0 : tensor<4xf32>
    %4 = stablehlo.add %arg0, %1 : tensor<4xf32>
    %5 = stablehlo.subtract %arg0, %0 : tensor<4xf32>
    %6 = stablehlo.subtract %arg0, %1 : tensor<4xf32>
    %7 = stablehlo.multiply %arg0, %0 : tensor<4xf32>
    %8 = stablehlo.multiply %arg0, %2 : tensor<4xf32>
    %9 = stablehlo.subtract %arg0, %arg0 : tensor<4xf32>
    %10 = stablehlo.maximum %arg0, %arg0 : tensor<4xf32>
    return %3, %4, %5, %6, %7, %8, %9, %10 : tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>
  }
}
// becomes
module {
  func.func @main(%arg0: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>) {
    %0 = stablehlo.constant dense<0.000000e+00> : tensor<4xf32>
    %1 = stablehlo.constant dense<-0.000000e+00> : tensor<4xf32>
    %2 = stablehlo.add %arg0, %0 : tensor<4xf32>
    %3 = stablehlo.subtract %arg0, %1 : tensor<4xf32>
    %4 = stablehlo.multiply %arg0, %0 : tensor<4xf32>
    %5 = stablehlo.subtract %arg0, %arg0 : tensor<4xf32>
    return %2, %arg0, %arg0, %3, %4, %arg0, %5, %arg0 : tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>
  }
}
