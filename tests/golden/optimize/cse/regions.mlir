module {
  func.func @main(%arg0: tensor<4x2xf32>, %arg1: tensor<f32>) -> (tensor<2xf32>, tensor<2xf32>, tensor<2xf32>) {
    %0 = "stablehlo.reduce"(%arg0, %arg1) <{dimensions = array<i64: 0>}> ({
    ^bb0(%arg2: tensor<f32>, %arg3: tensor<f32>):
      %1 = stablehlo.add %arg2, %arg3 : tensor<f32>
      stablehlo.return %1 : tensor<f32>
    }) : (tensor<4x2xf32>, tensor<f32>) -> tensor<2xf32>
    %2 = "stablehlo.reduce"(%arg0, %arg1) <{dimensions = array<i64: 0>}> ({
    ^bb0(%arg4: tensor<f32>, %arg5: tensor<f32>):
      %3 = stablehlo.add %arg4, %arg5 : tensor<f32>
      stablehlo.return %3 : tensor<f32>
    }) : (tensor<4x2xf32>, tensor<f32>) -> tensor<2xf32>
    %4 = "stablehlo.reduce"(%arg0, %arg1) <{dimensions = array<i64: 0>}> ({
    ^bb0(%arg6: tensor<f32>, %arg7: tensor<f32>):
      %5 = stablehlo.maximum %arg6, %arg7 : tensor<f32>
      stablehlo.return %5 : tensor<f32>
    }) : (tensor<4x2xf32>, tensor<f32>) -> tensor<2xf32>
    return %0, %2, %4 : tensor<2xf32>, tensor<2xf32>, tensor<2xf32>
  }
}
// becomes
module {
  func.func @main(%arg0: tensor<4x2xf32>, %arg1: tensor<f32>) -> (tensor<2xf32>, tensor<2xf32>, tensor<2xf32>) {
    %0 = "stablehlo.reduce"(%arg0, %arg1) <{dimensions = array<i64: 0>}> ({
    ^bb0(%arg2: tensor<f32>, %arg3: tensor<f32>):
      %1 = stablehlo.add %arg2, %arg3 : tensor<f32>
      stablehlo.return %1 : tensor<f32>
    }) : (tensor<4x2xf32>, tensor<f32>) -> tensor<2xf32>
    %2 = "stablehlo.reduce"(%arg0, %arg1) <{dimensions = array<i64: 0>}> ({
    ^bb0(%arg4: tensor<f32>, %arg5: tensor<f32>):
      %3 = stablehlo.maximum %arg4, %arg5 : tensor<f32>
      stablehlo.return %3 : tensor<f32>
    }) : (tensor<4x2xf32>, tensor<f32>) -> tensor<2xf32>
    return %0, %0, %2 : tensor<2xf32>, tensor<2xf32>, tensor<2xf32>
  }
}
