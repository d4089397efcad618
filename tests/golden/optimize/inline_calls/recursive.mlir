module {
  func.func @main(%arg0: tensor<i32>) -> tensor<i32> {
    %0 = "func.call"(%arg0) <{callee = @countdown}> : (tensor<i32>) -> tensor<i32>
    return %0 : tensor<i32>
  }
  func.func private @countdown(%arg0: tensor<i32>) -> tensor<i32> {
    %0 = stablehlo.constant dense<0> : tensor<i32>
    %1 = stablehlo.compare EQ, %arg0, %0 : (tensor<i32>, tensor<i32>) -> tensor<i1>
    %2 = "stablehlo.if"(%1) ({
      stablehlo.return %arg0 : tensor<i32>
    }, {
      %3 = stablehlo.constant dense<-1> : tensor<i32>
      %4 = stablehlo.add %arg0, %3 : tensor<i32>
      %5 = "func.call"(%4) <{callee = @countdown}> : (tensor<i32>) -> tensor<i32>
      stablehlo.return %5 : tensor<i32>
    }) : (tensor<i1>) -> tensor<i32>
    return %2 : tensor<i32>
  }
}
// becomes
module {
  func.func @main(%arg0: tensor<i32>) -> tensor<i32> {
    %0 = "func.call"(%arg0) <{callee = @countdown}> : (tensor<i32>) -> tensor<i32>
    return %0 : tensor<i32>
  }
  func.func private @countdown(%arg0: tensor<i32>) -> tensor<i32> {
    %0 = stablehlo.constant dense<0> : tensor<i32>
    %1 = stablehlo.compare EQ, %arg0, %0 : (tensor<i32>, tensor<i32>) -> tensor<i1>
    %2 = "stablehlo.if"(%1) ({
      stablehlo.return %arg0 : tensor<i32>
    }, {
      %3 = stablehlo.constant dense<-1> : tensor<i32>
      %4 = stablehlo.add %arg0, %3 : tensor<i32>
      %5 = "func.call"(%4) <{callee = @countdown}> : (tensor<i32>) -> tensor<i32>
      stablehlo.return %5 : tensor<i32>
    }) : (tensor<i1>) -> tensor<i32>
    return %2 : tensor<i32>
  }
}
