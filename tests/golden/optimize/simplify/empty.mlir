module {
  func.func @main(%arg0: tensor<0x4xf32>, %arg1: tensor<4x0xf32>) -> (tensor<0x4xf32>, tensor<0x0xf32>, tensor<4x4xf32>) {
    %0 = stablehlo.exponential %arg0 : tensor<0x4xf32>
    %1 = stablehlo.dot_general %arg0, %arg1, contracting_dims = [1] x [0] : (tensor<0x4xf32>, tensor<4x0xf32>) -> tensor<0x0xf32>
    %2 = stablehlo.dot_general %arg1, %0, contracting_dims = [1] x [0] : (tensor<4x0xf32>, tensor<0x4xf32>) -> tensor<4x4xf32>
    return %0, %1, %2 : tensor<0x4xf32>, tensor<0x0xf32>, tensor<4x4xf32>
  }
}
// becomes
module {
  func.func @main(%arg0: tensor<0x4xf32>, %arg1: tensor<4x0xf32>) -> (tensor<0x4xf32>, tensor<0x0xf32>, tensor<4x4xf32>) {
    %0 = stablehlo.constant dense<> : tensor<0x4xf32>
    %1 = stablehlo.constant dense<> : tensor<0x0xf32>
    %2 = stablehlo.constant dense<0.000000e+00> : tensor<4x4xf32>
    return %0, %1, %2 : tensor<0x4xf32>, tensor<0x0xf32>, tensor<4x4xf32>
  }
}
