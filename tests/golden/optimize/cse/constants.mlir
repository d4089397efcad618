module {
  func.func @main(%arg0: tensor<2xf32>) -> tensor<2xf32> {
    %0 = stablehlo.constant dense<1.000000e+00> : tensor<2xf32>
    %1 = stablehlo.constant dense<1.000000e+00> : tensor<2xf32>
    %2 = stablehlo.constant dense<-0.000000e+00> : tensor<2xf32>
    %3 = stablehlo.constant dense<0.000000e+00> : tensor<2xf32>
    %4 = stablehlo.add %0, %1 : tensor<2xf32>
    %5 = stablehlo.add %2, %3 : tensor<2xf32>
    %6 = stablehlo.add %4, %5 : tensor<2xf32>
    return %6 : tensor<2xf32>
  }
}
// becomes
module {
  func.func @main(%arg0: tensor<2xf32>) -> tensor<2xf32> {
    %0 = stablehlo.constant dense<1.000000e+00> : tensor<2xf32>
    %1 = stablehlo.constant dense<-0.000000e+00> : tensor<2xf32>
    %2 = stablehlo.constant dense<0.000000e+00> : tensor<2xf32>
    %3 = stablehlo.add %0, %0 : tensor<2xf32>
    %4 = stablehlo.add %1, %2 : tensor<2xf32>
    %5 = stablehlo.add %3, %4 : tensor<2xf32>
    return %5 : tensor<2xf32>
  }
}
