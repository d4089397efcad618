module {
  func.func @main(%arg0: tensor<8xf32>) -> (tensor<3xf32>, tensor<3xi32>) {
    %0:2 = "stablehlo.composite"(%arg0) <{composite_attributes = {k = 3 : i64}, decomposition = @sorted, name = "chlo.top_k"}> : (tensor<8xf32>) -> (tensor<3xf32>, tensor<3xi32>)
    return %0#0, %0#1 : tensor<3xf32>, tensor<3xi32>
  }
  func.func private @sorted(%arg0: tensor<8xf32>) -> (tensor<3xf32>, tensor<3xi32>) {
    %0:2 = "chlo.top_k"(%arg0) <{k = 3 : i64}> : (tensor<8xf32>) -> (tensor<3xf32>, tensor<3xi32>)
    return %0#0, %0#1 : tensor<3xf32>, tensor<3xi32>
  }
}

// -----  whole values

module {
  func.func @main(%arg0: tensor<8xf32>) -> (tensor<3xf32>, tensor<3xi32>) {
    %0:2 = "chlo.top_k"(%arg0) <{k = 3 : i64}> : (tensor<8xf32>) -> (tensor<3xf32>, tensor<3xi32>)
    return %0#0, %0#1 : tensor<3xf32>, tensor<3xi32>
  }
}
