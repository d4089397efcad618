module {
  func.func @main(%arg0: tensor<4xi32>) -> (tensor<4xi32>, tensor<4xi32>, tensor<4xi32>, tensor<4xi32>, tensor<4xi32>, tensor<4xi32>, tensor<4xi1>, tensor<4xi32>, tensor<4xi32>) {
    %0 = stablehlo.constant dense<0> : tensor<4xi32>
    %1 = stablehlo.constant dense<1> : tensor<4xi32>
    %2 = stablehlo.add %arg0, %0 : tensor<4xi32>
    %3 = stablehlo.multiply %1, %arg0 : tensor<4xi32>
    %4 = stablehlo.multiply %arg0, %0 : tensor<4xi32>
    %5 = stablehlo.subtract %arg0, %arg0 : tensor<4xi32>
    %6 = stablehlo.divide %arg0, %1 : tensor<4xi32>
    %7 = stablehlo.negate %arg0 : tensor<4xi32>
    %8 = stablehlo.negate %7 : tensor<4xi32>
    %9 = stablehlo.compare LE, %arg0, %arg0, SIGNED : (tensor<4xi32>, tensor<4xi32>) -> tensor<4xi1>
    %10 = stablehlo.constant dense<-1> : tensor<4xi32>
    %11 = stablehlo.and %arg0, %10 : tensor<4xi32>
    %12 = stablehlo.xor %arg0, %arg0 : tensor<4xi32>
    return %2, %3, %4, %5, %6, %8, %9, %11, %12 : tensor<4xi32>, tensor<4xi32>, tensor<4xi32>, tensor<4xi32>, tensor<4xi32>, tensor<4xi32>, tensor<4xi1>, tensor<4xi32>, tensor<4xi32>
  }
}
// becomes
module {
  func.func @main(%arg0: tensor<4xi32>) -> (tensor<4xi32>, tensor<4xi32>, tensor<4xi32>, tensor<4xi32>, tensor<4xi32>, tensor<4xi32>, tensor<4xi1>, tensor<4xi32>, tensor<4xi32>) {
    %0 = stablehlo.constant dense<0> : tensor<4xi32>
    %1 = stablehlo.constant dense<0> : tensor<4xi32>
    %2 = stablehlo.constant dense<true> : tensor<4xi1>
    %3 = stablehlo.constant dense<0> : tensor<4xi32>
    return %arg0, %arg0, %0, %1, %arg0, %arg0, %2, %arg0, %3 : tensor<4xi32>, tensor<4xi32>, tensor<4xi32>, tensor<4xi32>, tensor<4xi32>, tensor<4xi32>, tensor<4xi1>, tensor<4xi32>, tensor<4xi32>
  }
}
