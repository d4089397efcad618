// A constant call that nobody reads goes, and its function with it.
module {
  sdy.mesh @mesh = <["x"=2, "y"=4]>
  func.func private @f0(%arg0: tensor<4xf32>) -> tensor<4xf32> {
    return %arg0 : tensor<4xf32>
  }
  func.func @main(%arg0: tensor<5xf32>) -> tensor<5xf32> {
    %0 = stablehlo.constant dense<1.000000e+00> : tensor<4xf32>
    %1 = "func.call"(%0) <{callee = @f0}> : (tensor<4xf32>) -> tensor<4xf32>
    return %arg0 : tensor<5xf32>
  }
}
