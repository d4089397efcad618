module {
  func.func @main(%arg0: tensor<2xf32>) -> (tensor<2xf32>, tensor<2xf32>) {
    %0 = "stablehlo.custom_call"(%arg0) <{call_target_name = "Sharding"}> : (tensor<2xf32>) -> tensor<2xf32>
    %1 = "stablehlo.custom_call"(%arg0) <{call_target_name = "Sharding"}> : (tensor<2xf32>) -> tensor<2xf32>
    %2 = "func.call"(%0) <{callee = @f}> : (tensor<2xf32>) -> tensor<2xf32>
    %3 = "func.call"(%0) <{callee = @f}> : (tensor<2xf32>) -> tensor<2xf32>
    return %2, %3 : tensor<2xf32>, tensor<2xf32>
  }
  func.func private @f(%arg0: tensor<2xf32>) -> tensor<2xf32> {
    %0 = "stablehlo.custom_call"(%arg0) <{call_target_name = "Sharding"}> : (tensor<2xf32>) -> tensor<2xf32>
    return %0 : tensor<2xf32>
  }
}
// becomes
module {
  func.func @main(%arg0: tensor<2xf32>) -> (tensor<2xf32>, tensor<2xf32>) {
    %0 = "stablehlo.custom_call"(%arg0) <{call_target_name = "Sharding"}> : (tensor<2xf32>) -> tensor<2xf32>
    %1 = "stablehlo.custom_call"(%arg0) <{call_target_name = "Sharding"}> : (tensor<2xf32>) -> tensor<2xf32>
    %2 = "func.call"(%0) <{callee = @f}> : (tensor<2xf32>) -> tensor<2xf32>
    %3 = "func.call"(%0) <{callee = @f}> : (tensor<2xf32>) -> tensor<2xf32>
    return %2, %3 : tensor<2xf32>, tensor<2xf32>
  }
  func.func private @f(%arg0: tensor<2xf32>) -> tensor<2xf32> {
    %0 = "stablehlo.custom_call"(%arg0) <{call_target_name = "Sharding"}> : (tensor<2xf32>) -> tensor<2xf32>
    return %0 : tensor<2xf32>
  }
}
