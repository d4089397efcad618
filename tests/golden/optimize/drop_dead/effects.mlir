module {
  func.func @main(%arg0: tensor<2xf32>) -> tensor<2xf32> {
    %0 = stablehlo.add %arg0, %arg0 : tensor<2xf32>
    "check.expect_eq"(%0, %0) : (tensor<2xf32>, tensor<2xf32>) -> ()
    %1 = "func.call"(%arg0) <{callee = @checks}> : (tensor<2xf32>) -> tensor<2xf32>
    %2 = "func.call"(%arg0) <{callee = @computes}> : (tensor<2xf32>) -> tensor<2xf32>
    %3 = "stablehlo.custom_call"(%arg0) <{call_target_name = "Sharding"}> : (tensor<2xf32>) -> tensor<2xf32>
    return %arg0 : tensor<2xf32>
  }
  func.func private @checks(%arg0: tensor<2xf32>) -> tensor<2xf32> {
    "check.expect_eq"(%arg0, %arg0) : (tensor<2xf32>, tensor<2xf32>) -> ()
    return %arg0 : tensor<2xf32>
  }
  func.func private @computes(%arg0: tensor<2xf32>) -> tensor<2xf32> {
    %0 = stablehlo.negate %arg0 : tensor<2xf32>
    return %0 : tensor<2xf32>
  }
}
// becomes
module {
  func.func @main(%arg0: tensor<2xf32>) -> tensor<2xf32> {
    %0 = stablehlo.add %arg0, %arg0 : tensor<2xf32>
    "check.expect_eq"(%0, %0) : (tensor<2xf32>, tensor<2xf32>) -> ()
    %1 = "func.call"(%arg0) <{callee = @checks}> : (tensor<2xf32>) -> tensor<2xf32>
    %2 = "stablehlo.custom_call"(%arg0) <{call_target_name = "Sharding"}> : (tensor<2xf32>) -> tensor<2xf32>
    return %arg0 : tensor<2xf32>
  }
  func.func private @checks(%arg0: tensor<2xf32>) -> tensor<2xf32> {
    "check.expect_eq"(%arg0, %arg0) : (tensor<2xf32>, tensor<2xf32>) -> ()
    return %arg0 : tensor<2xf32>
  }
  func.func private @computes(%arg0: tensor<2xf32>) -> tensor<2xf32> {
    %0 = stablehlo.negate %arg0 : tensor<2xf32>
    return %0 : tensor<2xf32>
  }
}
