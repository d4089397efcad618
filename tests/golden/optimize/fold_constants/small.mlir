module {
  func.func @main() -> (tensor<3x2xf32>, tensor<3xi1>, tensor<2048xi32>) {
    %0 = stablehlo.constant dense<[[0.000000e+00, 1.000000e+00, 2.000000e+00], [3.000000e+00, 4.000000e+00, 5.000000e+00]]> : tensor<2x3xf32>
    %1 = stablehlo.iota dim = 0 : tensor<3xi32>
    %2 = stablehlo.iota dim = 0 : tensor<2048xi32>
    %3 = stablehlo.transpose %0, dims = [1, 0] : (tensor<2x3xf32>) -> tensor<3x2xf32>
    %4 = stablehlo.constant dense<2> : tensor<3xi32>
    %5 = stablehlo.compare LT, %1, %4, SIGNED : (tensor<3xi32>, tensor<3xi32>) -> tensor<3xi1>
    %6 = stablehlo.add %2, %2 : tensor<2048xi32>
    return %3, %5, %6 : tensor<3x2xf32>, tensor<3xi1>, tensor<2048xi32>
  }
}
// becomes
module {
  func.func @main() -> (tensor<3x2xf32>, tensor<3xi1>, tensor<2048xi32>) {
    %0 = stablehlo.iota dim = 0 : tensor<2048xi32>
    %1 = stablehlo.constant dense<[[0.000000e+00, 3.000000e+00], [1.000000e+00, 4.000000e+00], [2.000000e+00, 5.000000e+00]]> : tensor<3x2xf32>
    %2 = stablehlo.constant dense<[true, true, false]> : tensor<3xi1>
    %3 = stablehlo.add %0, %0 : tensor<2048xi32>
    return %1, %2, %3 : tensor<3x2xf32>, tensor<3xi1>, tensor<2048xi32>
  }
}
