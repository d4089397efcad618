module {
  func.func @main(%arg0: tensor<4xf32>, %arg1: tensor<i1>) -> (tensor<4xf32>, tensor<4xf32>, tensor<4xf32>) {
    %0 = stablehlo.constant dense<true> : tensor<i1>
    %1 = "stablehlo.if"(%0) ({
      %2 = stablehlo.negate %arg0 : tensor<4xf32>
      stablehlo.return %2 : tensor<4xf32>
    }, {
      stablehlo.return %arg0 : tensor<4xf32>
    }) : (tensor<i1>) -> tensor<4xf32>
    %3 = "stablehlo.if"(%arg1) ({
      stablehlo.return %1 : tensor<4xf32>
    }, {
      stablehlo.return %1 : tensor<4xf32>
    }) : (tensor<i1>) -> tensor<4xf32>
    %4 = stablehlo.constant dense<7> : tensor<i32>
    %5 = "stablehlo.case"(%4) ({
      stablehlo.return %arg0 : tensor<4xf32>
    }, {
      %6 = stablehlo.add %arg0, %3 : tensor<4xf32>
      stablehlo.return %6 : tensor<4xf32>
    }) : (tensor<i32>) -> tensor<4xf32>
    %7 = "stablehlo.if"(%arg1) ({
      stablehlo.return %1 : tensor<4xf32>
    }, {
      stablehlo.return %5 : tensor<4xf32>
    }) : (tensor<i1>) -> tensor<4xf32>
    return %3, %5, %7 : tensor<4xf32>, tensor<4xf32>, tensor<4xf32>
  }
}
// becomes
module {
  func.func @main(%arg0: tensor<4xf32>, %arg1: tensor<i1>) -> (tensor<4xf32>, tensor<4xf32>, tensor<4xf32>) {
    %0 = stablehlo.negate %arg0 : tensor<4xf32>
    %1 = stablehlo.add %arg0, %0 : tensor<4xf32>
    %2 = "stablehlo.if"(%arg1) ({
      stablehlo.return %0 : tensor<4xf32>
    }, {
      stablehlo.return %1 : tensor<4xf32>
    }) : (tensor<i1>) -> tensor<4xf32>
    return %0, %1, %2 : tensor<4xf32>, tensor<4xf32>, tensor<4xf32>
  }
}
