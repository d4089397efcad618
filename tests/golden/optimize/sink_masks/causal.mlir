module {
  func.func @main(%arg0: tensor<4x4xf32>) -> tensor<4x4xf32> {
    %0 = stablehlo.iota dim = 0 : tensor<4x4xi32>
    %1 = stablehlo.iota dim = 1 : tensor<4x4xi32>
    %2 = stablehlo.compare GE, %0, %1, SIGNED : (tensor<4x4xi32>, tensor<4x4xi32>) -> tensor<4x4xi1>
    %3 = stablehlo.constant dense<0.000000e+00> : tensor<4x4xf32>
    %4 = stablehlo.constant dense<0> : tensor<i32>
    %5:3 = "stablehlo.while"(%4, %arg0, %3) ({
    ^bb0(%arg1: tensor<i32>, %arg2: tensor<4x4xf32>, %arg3: tensor<4x4xf32>):
      %6 = stablehlo.constant dense<3> : tensor<i32>
      %7 = stablehlo.compare LT, %arg1, %6, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %7 : tensor<i1>
    }, {
    ^bb0(%arg4: tensor<i32>, %arg5: tensor<4x4xf32>, %arg6: tensor<4x4xf32>):
      %8 = stablehlo.select %2, %arg5, %arg6 : (tensor<4x4xi1>, tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
      %9 = stablehlo.constant dense<1> : tensor<i32>
      %10 = stablehlo.add %arg4, %9 : tensor<i32>
      stablehlo.return %10, %8, %arg6 : tensor<i32>, tensor<4x4xf32>, tensor<4x4xf32>
    }) : (tensor<i32>, tensor<4x4xf32>, tensor<4x4xf32>) -> (tensor<i32>, tensor<4x4xf32>, tensor<4x4xf32>)
    return %5#1 : tensor<4x4xf32>
  }
}
// becomes
module {
  func.func @main(%arg0: tensor<4x4xf32>) -> tensor<4x4xf32> {
    %0 = stablehlo.constant dense<0> : tensor<i32>
    %1:2 = "stablehlo.while"(%0, %arg0) ({
    ^bb0(%arg1: tensor<i32>, %arg2: tensor<4x4xf32>):
      %2 = stablehlo.constant dense<3> : tensor<i32>
      %3 = stablehlo.compare LT, %arg1, %2, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %3 : tensor<i1>
    }, {
    ^bb0(%arg3: tensor<i32>, %arg4: tensor<4x4xf32>):
      %4 = stablehlo.iota dim = 0 : tensor<4x4xi32>
      %5 = stablehlo.iota dim = 1 : tensor<4x4xi32>
      %6 = stablehlo.compare GE, %4, %5, SIGNED : (tensor<4x4xi32>, tensor<4x4xi32>) -> tensor<4x4xi1>
      %7 = stablehlo.constant dense<0.000000e+00> : tensor<4x4xf32>
      %8 = stablehlo.select %6, %arg4, %7 : (tensor<4x4xi1>, tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
      %9 = stablehlo.constant dense<1> : tensor<i32>
      %10 = stablehlo.add %arg3, %9 : tensor<i32>
      stablehlo.return %10, %8 : tensor<i32>, tensor<4x4xf32>
    }) : (tensor<i32>, tensor<4x4xf32>) -> (tensor<i32>, tensor<4x4xf32>)
    return %1#1 : tensor<4x4xf32>
  }
}
