module {
  func.func @main(%arg0: !stablehlo.token, %arg1: tensor<4xf32>) -> (tensor<4xf32>, !stablehlo.token) {
    %0 = "stablehlo.after_all"(%arg0) : (!stablehlo.token) -> !stablehlo.token
    return %arg1, %0 : tensor<4xf32>, !stablehlo.token
  }
}

// -----  whole values

module {
  func.func @main(%arg0: tensor<4xf32>) -> tensor<4xf32> {
    %0 = "stablehlo.create_token"() : () -> !stablehlo.token
    %1 = "stablehlo.after_all"(%0) : (!stablehlo.token) -> !stablehlo.token
    return %arg0 : tensor<4xf32>
  }
}

// -----  pieces

module {
  func.func @main(%arg0: tensor<0xi1>, %arg1: tensor<4xf32>) -> (tensor<4xf32>, tensor<0xi1>) {
    %0 = "stablehlo.create_token"() : () -> !stablehlo.token
    %1 = "stablehlo.after_all"(%0) : (!stablehlo.token) -> !stablehlo.token
    %2 = stablehlo.constant dense<> : tensor<0xi1>
    return %arg1, %2 : tensor<4xf32>, tensor<0xi1>
  }
}
