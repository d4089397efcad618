// The loop takes its copy of the iota before its body does.
module {
  sdy.mesh @mesh = <["x"=2, "y"=2, "z"=2]>
  func.func @main(%arg0: tensor<16x8xf32>, %arg1: tensor<6x1xi32>, %arg2: tensor<i1>) -> tensor<6x1xi32> {
    %0 = stablehlo.iota dim = 0 : tensor<16x4x4xf32>
    %1:2 = "stablehlo.while"(%arg0, %0) ({
    ^bb0(%arg3: tensor<16x8xf32>, %arg4: tensor<16x4x4xf32>):
      stablehlo.return %arg2 : tensor<i1>
    }, {
    ^bb0(%arg5: tensor<16x8xf32>, %arg6: tensor<16x4x4xf32>):
      %2 = stablehlo.transpose %0, dims = [2, 0, 1] : (tensor<16x4x4xf32>) -> tensor<4x16x4xf32>
      %3 = "sdy.sharding_constraint"(%2) <{sharding = #sdy.sharding<@mesh, [{"y", "x"}, {}, {}]>}> : (tensor<4x16x4xf32>) -> tensor<4x16x4xf32>
      stablehlo.return %arg5, %arg6 : tensor<16x8xf32>, tensor<16x4x4xf32>
    }) : (tensor<16x8xf32>, tensor<16x4x4xf32>) -> (tensor<16x8xf32>, tensor<16x4x4xf32>)
    return %arg1 : tensor<6x1xi32>
  }
}
