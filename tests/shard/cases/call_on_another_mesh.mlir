// Values that are not split need no reshard from one mesh to another.
module {
  sdy.mesh @mesh = <["x"=4, "y"=8]>
  sdy.mesh @other = <["x"=8]>
  func.func private @f0(%arg0: tensor<3x4xf32>, %arg1: tensor<12x8xf32>, %arg2: tensor<3x4xf32>) -> (tensor<3x4xf32>, tensor<3x3xf32>, tensor<3x4xf32>) {
    %0 = stablehlo.slice %arg2 [0:3, 0:3] : (tensor<3x4xf32>) -> tensor<3x3xf32>
    return %arg0, %0, %arg0 : tensor<3x4xf32>, tensor<3x3xf32>, tensor<3x4xf32>
  }
  func.func @main(%arg0: tensor<3x4xf32> {sdy.sharding = #sdy.sharding<@other, [{}, {}]>}, %arg1: tensor<12x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"y"}, {}]>}, %arg2: tensor<3x4x1xf32>) -> tensor<3x4x1xf32> {
    %0:3 = "func.call"(%arg0, %arg1, %arg0) <{callee = @f0}> : (tensor<3x4xf32>, tensor<12x8xf32>, tensor<3x4xf32>) -> (tensor<3x4xf32>, tensor<3x3xf32>, tensor<3x4xf32>)
    return %arg2 : tensor<3x4x1xf32>
  }
}
