// A sharding group does not keep a function from being constant.
module {
  sdy.mesh @mesh = <["x"=2, "y"=3]>
  func.func private @f0(%arg0: tensor<32x32xf32>, %arg1: tensor<8xf32>, %arg2: tensor<16x8xf32>) -> (tensor<32x32xf32>, tensor<8xf32>) {
    "sdy.sharding_group"(%arg1) <{group_id = 2117 : i64}> : (tensor<8xf32>) -> ()
    return %arg0, %arg1 : tensor<32x32xf32>, tensor<8xf32>
  }
  func.func @main(%arg0: tensor<8x4x8x8xf32>, %arg1: tensor<i32>, %arg2: tensor<16xf32>) -> tensor<8x4x8x8xf32> {
    %0 = "stablehlo.case"(%arg1) ({
      stablehlo.return %arg2 : tensor<16xf32>
    }, {
      %1 = stablehlo.constant dense<1.000000e+00> : tensor<32x32xf32>
      %2 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
      %3 = stablehlo.broadcast_in_dim %2, dims = [] : (tensor<f32>) -> tensor<8xf32>
      %4 = stablehlo.constant dense<1.000000e+00> : tensor<16x8xf32>
      %5:2 = "func.call"(%1, %3, %4) <{callee = @f0}> : (tensor<32x32xf32>, tensor<8xf32>, tensor<16x8xf32>) -> (tensor<32x32xf32>, tensor<8xf32>)
      stablehlo.return %arg2 : tensor<16xf32>
    }) : (tensor<i32>) -> tensor<16xf32>
    return %arg0 : tensor<8x4x8x8xf32>
  }
}
