module {
  func.func @main(%arg0: tensor<i1>, %arg1: tensor<2xf32>) -> (tensor<2xf32>, tensor<2xf32>) {
    %0 = stablehlo.add %arg1, %arg1 : tensor<2xf32>
    %1 = "stablehlo.if"(%arg0) ({
      %2 = stablehlo.add %arg1, %arg1 : tensor<2xf32>
      %3 = stablehlo.multiply %2, %arg1 : tensor<2xf32>
      stablehlo.return %3 : tensor<2xf32>
    }, {
      %4 = stablehlo.multiply %arg1, %arg1 : tensor<2xf32>
      stablehlo.return %4 : tensor<2xf32>
    }) : (tensor<i1>) -> tensor<2xf32>
    %5 = stablehlo.multiply %arg1, %arg1 : tensor<2xf32>
    return %1, %5 : tensor<2xf32>, tensor<2xf32>
  }
}
// becomes
module {
  func.func @main(%arg0: tensor<i1>, %arg1: tensor<2xf32>) -> (tensor<2xf32>, tensor<2xf32>) {
    %0 = stablehlo.add %arg1, %arg1 : tensor<2xf32>
    %1 = "stablehlo.if"(%arg0) ({
      %2 = stablehlo.multiply %0, %arg1 : tensor<2xf32>
      stablehlo.return %2 : tensor<2xf32>
    }, {
      %3 = stablehlo.multiply %arg1, %arg1 : tensor<2xf32>
      stablehlo.return %3 : tensor<2xf32>
    }) : (tensor<i1>) -> tensor<2xf32>
    %4 = stablehlo.multiply %arg1, %arg1 : tensor<2xf32>
    return %1, %4 : tensor<2xf32>, tensor<2xf32>
  }
}
