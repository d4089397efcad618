module {
  func.func @main(%arg0: tensor<4x4xf32>, %arg1: tensor<4xf32>) -> (tensor<4x4xf32>, tensor<4x4xf32>, tensor<2x3x4xf32>, tensor<4x4xf32>, tensor<2x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>) {
    %0 = stablehlo.transpose %arg0, dims = [1, 0] : (tensor<4x4xf32>) -> tensor<4x4xf32>
    %1 = stablehlo.transpose %0, dims = [1, 0] : (tensor<4x4xf32>) -> tensor<4x4xf32>
    %2 = stablehlo.reshape %arg0 : (tensor<4x4xf32>) -> tensor<16xf32>
    %3 = stablehlo.reshape %2 : (tensor<16xf32>) -> tensor<4x4xf32>
    %4 = stablehlo.broadcast_in_dim %arg1, dims = [1] : (tensor<4xf32>) -> tensor<3x4xf32>
    %5 = stablehlo.broadcast_in_dim %4, dims = [1, 2] : (tensor<3x4xf32>) -> tensor<2x3x4xf32>
    %6 = stablehlo.reshape %arg1 : (tensor<4xf32>) -> tensor<1x4xf32>
    %7 = stablehlo.broadcast_in_dim %6, dims = [0, 1] : (tensor<1x4xf32>) -> tensor<4x4xf32>
    %8 = stablehlo.slice %arg0 [1:4, 0:4] : (tensor<4x4xf32>) -> tensor<3x4xf32>
    %9 = stablehlo.slice %8 [1:3, 0:4] : (tensor<3x4xf32>) -> tensor<2x4xf32>
    %10 = stablehlo.slice %arg0 [0:4, 0:4] : (tensor<4x4xf32>) -> tensor<4x4xf32>
    %11 = stablehlo.concatenate %arg0, dim = 0 : (tensor<4x4xf32>) -> tensor<4x4xf32>
    %12 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %13 = stablehlo.pad %arg0, %12, low = [0, 0], high = [0, 0], interior = [0, 0] : (tensor<4x4xf32>, tensor<f32>) -> tensor<4x4xf32>
    %14 = stablehlo.reverse %arg0, dims = [] : tensor<4x4xf32>
    return %1, %3, %5, %7, %9, %10, %11, %13, %14 : tensor<4x4xf32>, tensor<4x4xf32>, tensor<2x3x4xf32>, tensor<4x4xf32>, tensor<2x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>
  }
}
// becomes
module {
  func.func @main(%arg0: tensor<4x4xf32>, %arg1: tensor<4xf32>) -> (tensor<4x4xf32>, tensor<4x4xf32>, tensor<2x3x4xf32>, tensor<4x4xf32>, tensor<2x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>) {
    %0 = stablehlo.broadcast_in_dim %arg1, dims = [2] : (tensor<4xf32>) -> tensor<2x3x4xf32>
    %1 = stablehlo.broadcast_in_dim %arg1, dims = [1] : (tensor<4xf32>) -> tensor<4x4xf32>
    %2 = stablehlo.slice %arg0 [2:4, 0:4] : (tensor<4x4xf32>) -> tensor<2x4xf32>
    return %arg0, %arg0, %0, %1, %2, %arg0, %arg0, %arg0, %arg0 : tensor<4x4xf32>, tensor<4x4xf32>, tensor<2x3x4xf32>, tensor<4x4xf32>, tensor<2x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>
  }
}
