module {
  func.func @main(%arg0: tensor<2x3x8xcomplex<f32>>, %arg1: tensor<4x3x5xcomplex<f32>>) -> tensor<2x4x4xcomplex<f32>> {
    %0 = "stablehlo.convolution"(%arg0, %arg1) <{batch_group_count = 1 : i64, dimension_numbers = #stablehlo.conv<[b, f, 0]x[o, i, 0]->[b, f, 0]>, feature_group_count = 1 : i64, padding = dense<0> : tensor<1x2xi64>, window_strides = array<i64: 1>}> : (tensor<2x3x8xcomplex<f32>>, tensor<4x3x5xcomplex<f32>>) -> tensor<2x4x4xcomplex<f32>>
    return %0 : tensor<2x4x4xcomplex<f32>>
  }
}
// becomes
module {
  func.func @main(%arg0: tensor<2x3x8xcomplex<f32>>, %arg1: tensor<4x3x5xcomplex<f32>>) -> tensor<2x4x4xcomplex<f32>> {
    %0 = stablehlo.real %arg0 : (tensor<2x3x8xcomplex<f32>>) -> tensor<2x3x8xf32>
    %1 = stablehlo.real %arg1 : (tensor<4x3x5xcomplex<f32>>) -> tensor<4x3x5xf32>
    %2 = "stablehlo.convolution"(%0, %1) <{batch_group_count = 1 : i64, dimension_numbers = #stablehlo.conv<[b, f, 0]x[o, i, 0]->[b, f, 0]>, feature_group_count = 1 : i64, padding = dense<0> : tensor<1x2xi64>, window_strides = array<i64: 1>}> : (tensor<2x3x8xf32>, tensor<4x3x5xf32>) -> tensor<2x4x4xf32>
    %3 = stablehlo.imag %arg0 : (tensor<2x3x8xcomplex<f32>>) -> tensor<2x3x8xf32>
    %4 = stablehlo.imag %arg1 : (tensor<4x3x5xcomplex<f32>>) -> tensor<4x3x5xf32>
    %5 = "stablehlo.convolution"(%3, %4) <{batch_group_count = 1 : i64, dimension_numbers = #stablehlo.conv<[b, f, 0]x[o, i, 0]->[b, f, 0]>, feature_group_count = 1 : i64, padding = dense<0> : tensor<1x2xi64>, window_strides = array<i64: 1>}> : (tensor<2x3x8xf32>, tensor<4x3x5xf32>) -> tensor<2x4x4xf32>
    %6 = stablehlo.subtract %2, %5 : tensor<2x4x4xf32>
    %7 = "stablehlo.convolution"(%0, %4) <{batch_group_count = 1 : i64, dimension_numbers = #stablehlo.conv<[b, f, 0]x[o, i, 0]->[b, f, 0]>, feature_group_count = 1 : i64, padding = dense<0> : tensor<1x2xi64>, window_strides = array<i64: 1>}> : (tensor<2x3x8xf32>, tensor<4x3x5xf32>) -> tensor<2x4x4xf32>
    %8 = "stablehlo.convolution"(%3, %1) <{batch_group_count = 1 : i64, dimension_numbers = #stablehlo.conv<[b, f, 0]x[o, i, 0]->[b, f, 0]>, feature_group_count = 1 : i64, padding = dense<0> : tensor<1x2xi64>, window_strides = array<i64: 1>}> : (tensor<2x3x8xf32>, tensor<4x3x5xf32>) -> tensor<2x4x4xf32>
    %9 = stablehlo.add %7, %8 : tensor<2x4x4xf32>
    %10 = stablehlo.complex %6, %9 : tensor<2x4x4xcomplex<f32>>
    return %10 : tensor<2x4x4xcomplex<f32>>
  }
}
