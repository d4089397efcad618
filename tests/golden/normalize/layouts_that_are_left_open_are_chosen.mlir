module {
  func.func @main(%arg0: tensor<4x8xf32>) -> (tensor<8x4xf32> {mhlo.layout_mode = "auto"}) {
    %0 = stablehlo.transpose %arg0, dims = [1, 0] : (tensor<4x8xf32>) -> tensor<8x4xf32>
    return %0 : tensor<8x4xf32>
  }
}

// -----  whole values

module {
  func.func @main(%arg0: tensor<4x8xf32>) -> (tensor<8x4xf32> {mhlo.layout_mode = "{0,1}"}) {
    %0 = stablehlo.transpose %arg0, dims = [1, 0] : (tensor<4x8xf32>) -> tensor<8x4xf32>
    return %0 : tensor<8x4xf32>
  }
}
