module {
  func.func @main(%arg0: tensor<2xf32>, %arg1: tensor<i1>) -> (tensor<2xf32>, tensor<2xf32>) {
    %0 = "func.call"(%arg0) <{callee = @twice}> : (tensor<2xf32>) -> tensor<2xf32>
    %1 = "stablehlo.if"(%arg1) ({
      %2 = "func.call"(%0) <{callee = @once}> : (tensor<2xf32>) -> tensor<2xf32>
      stablehlo.return %2 : tensor<2xf32>
    }, {
      stablehlo.return %arg0 : tensor<2xf32>
    }) : (tensor<i1>) -> tensor<2xf32>
    return %0, %1 : tensor<2xf32>, tensor<2xf32>
  }
  func.func private @twice(%arg0: tensor<2xf32>) -> tensor<2xf32> {
    %0 = "func.call"(%arg0) <{callee = @once}> : (tensor<2xf32>) -> tensor<2xf32>
    %1 = "func.call"(%0) <{callee = @once}> : (tensor<2xf32>) -> tensor<2xf32>
    return %1 : tensor<2xf32>
  }
  func.func private @once(%arg0: tensor<2xf32>) -> tensor<2xf32> {
    %0 = stablehlo.negate %arg0 : tensor<2xf32>
    return %0 : tensor<2xf32>
  }
}
// becomes
module {
  func.func @main(%arg0: tensor<2xf32>, %arg1: tensor<i1>) -> (tensor<2xf32>, tensor<2xf32>) {
    %0 = stablehlo.negate %arg0 : tensor<2xf32>
    %1 = stablehlo.negate %0 : tensor<2xf32>
    %2 = "stablehlo.if"(%arg1) ({
      %3 = stablehlo.negate %1 : tensor<2xf32>
      stablehlo.return %3 : tensor<2xf32>
    }, {
      stablehlo.return %arg0 : tensor<2xf32>
    }) : (tensor<i1>) -> tensor<2xf32>
    return %1, %2 : tensor<2xf32>, tensor<2xf32>
  }
}
