// A concatenation holds what stands before a barrier against what it wants.
module {
  sdy.mesh @mesh = <["x"=4, "y"=8]>
  func.func @main(%arg0: tensor<3xf32>, %arg1: tensor<12xf32>, %arg2: tensor<8xf32>) -> (tensor<15x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"y"}, {}]>}) {
    %0 = "sdy.propagation_barrier"(%arg0) <{allowed_direction = 0 : i32}> : (tensor<3xf32>) -> tensor<3xf32>
    %1 = stablehlo.concatenate %arg1, %0, dim = 0 : (tensor<12xf32>, tensor<3xf32>) -> tensor<15xf32>
    %2 = stablehlo.dot_general %1, %arg2, contracting_dims = [] x [] : (tensor<15xf32>, tensor<8xf32>) -> tensor<15x8xf32>
    return %2 : tensor<15x8xf32>
  }
}
