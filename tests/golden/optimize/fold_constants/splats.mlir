module {
  func.func @main(%arg0: tensor<2xf32>) -> (tensor<1048576xf32>, tensor<2xf32>) {
    %0 = stablehlo.constant dense<1.000000e+00> : tensor<1024x1024xf32>
    %1 = stablehlo.add %0, %0 : tensor<1024x1024xf32>
    %2 = stablehlo.transpose %1, dims = [1, 0] : (tensor<1024x1024xf32>) -> tensor<1024x1024xf32>
    %3 = stablehlo.reshape %2 : (tensor<1024x1024xf32>) -> tensor<1048576xf32>
    %4 = stablehlo.constant dense<3.000000e+00> : tensor<f32>
    %5 = stablehlo.constant dense<2.000000e+00> : tensor<f32>
    %6 = stablehlo.multiply %4, %5 : tensor<f32>
    %7 = stablehlo.broadcast_in_dim %6, dims = [] : (tensor<f32>) -> tensor<2xf32>
    %8 = stablehlo.multiply %arg0, %7 : tensor<2xf32>
    return %3, %8 : tensor<1048576xf32>, tensor<2xf32>
  }
}
// becomes
module {
  func.func @main(%arg0: tensor<2xf32>) -> (tensor<1048576xf32>, tensor<2xf32>) {
    %0 = stablehlo.constant dense<2.000000e+00> : tensor<1048576xf32>
    %1 = stablehlo.constant dense<6.000000e+00> : tensor<2xf32>
    %2 = stablehlo.multiply %arg0, %1 : tensor<2xf32>
    return %0, %2 : tensor<1048576xf32>, tensor<2xf32>
  }
}
