// A result of an optimization barrier has a sharding of its own, or none.
module {
  sdy.mesh @mesh = <["x"=8]>
  func.func private @f0(%arg0: tensor<12x8xf32>, %arg1: tensor<24x4xf32>, %arg2: tensor<8x12xf32>) -> (tensor<12x8xf32>, tensor<8x11xf32>, tensor<8x11xf32>) {
    %0 = stablehlo.constant dense<0> : tensor<i32>
    %1 = stablehlo.dynamic_slice %arg2, %0, %0, sizes = [8, 11] : (tensor<8x12xf32>, tensor<i32>, tensor<i32>) -> tensor<8x11xf32>
    return %arg0, %1, %1 : tensor<12x8xf32>, tensor<8x11xf32>, tensor<8x11xf32>
  }
  func.func private @f1(%arg0: tensor<12x3xf32>, %arg1: tensor<12x8xf32>, %arg2: tensor<24x4xf32>, %arg3: tensor<8x12xf32>, %arg4: tensor<4x12x8xf32>) -> (tensor<4x12x8xf32>, tensor<24x4xf32>) {
    %0:3 = "func.call"(%arg1, %arg2, %arg3) <{callee = @f0}> : (tensor<12x8xf32>, tensor<24x4xf32>, tensor<8x12xf32>) -> (tensor<12x8xf32>, tensor<8x11xf32>, tensor<8x11xf32>)
    %1:2 = "stablehlo.optimization_barrier"(%arg4, %0#0) : (tensor<4x12x8xf32>, tensor<12x8xf32>) -> (tensor<4x12x8xf32>, tensor<12x8xf32>)
    return %1#0, %arg2 : tensor<4x12x8xf32>, tensor<24x4xf32>
  }
  func.func @main(%arg0: tensor<12x3xf32>, %arg1: tensor<12x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}, %arg2: tensor<4x12x8xf32>, %arg3: tensor<8x12xf32>, %arg4: tensor<24x4xf32>, %arg5: tensor<8x8x32xf32>) -> tensor<8x8x32xf32> {
    %0:2 = "func.call"(%arg0, %arg1, %arg4, %arg3, %arg2) <{callee = @f1}> : (tensor<12x3xf32>, tensor<12x8xf32>, tensor<24x4xf32>, tensor<8x12xf32>, tensor<4x12x8xf32>) -> (tensor<4x12x8xf32>, tensor<24x4xf32>)
    return %arg5 : tensor<8x8x32xf32>
  }
}
