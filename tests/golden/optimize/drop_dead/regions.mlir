module {
  func.func @main(%arg0: tensor<i1>, %arg1: tensor<2xf32>) -> tensor<2xf32> {
    %0 = stablehlo.negate %arg1 : tensor<2xf32>
    %1 = stablehlo.abs %arg1 : tensor<2xf32>
    %2 = "stablehlo.if"(%arg0) ({
      %3 = stablehlo.add %0, %arg1 : tensor<2xf32>
      %4 = stablehlo.multiply %3, %1 : tensor<2xf32>
      stablehlo.return %3 : tensor<2xf32>
    }, {
      stablehlo.return %arg1 : tensor<2xf32>
    }) : (tensor<i1>) -> tensor<2xf32>
    %5 = "stablehlo.if"(%arg0) ({
      stablehlo.return %1 : tensor<2xf32>
    }, {
      stablehlo.return %arg1 : tensor<2xf32>
    }) : (tensor<i1>) -> tensor<2xf32>
    return %2 : tensor<2xf32>
  }
}
// becomes
module {
  func.func @main(%arg0: tensor<i1>, %arg1: tensor<2xf32>) -> tensor<2xf32> {
    %0 = stablehlo.negate %arg1 : tensor<2xf32>
    %1 = "stablehlo.if"(%arg0) ({
      %2 = stablehlo.add %0, %arg1 : tensor<2xf32>
      stablehlo.return %2 : tensor<2xf32>
    }, {
      stablehlo.return %arg1 : tensor<2xf32>
    }) : (tensor<i1>) -> tensor<2xf32>
    return %1 : tensor<2xf32>
  }
}
