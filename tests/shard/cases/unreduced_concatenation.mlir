// Unreduced operands are reduced, then made to agree.
module {
  sdy.mesh @mesh = <["x"=1, "y"=4, "z"=2]>
  func.func @main(%arg0: tensor<12xf32>, %arg1: tensor<18x6x12xf32>) -> tensor<18x6xf32> {
    %0 = stablehlo.broadcast_in_dim %arg0, dims = [1] {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"z", "x"}, {}], unreduced={"y"}>]>} : (tensor<12xf32>) -> tensor<6x12xf32>
    %1 = stablehlo.concatenate %0, %0, %0, dim = 0 : (tensor<6x12xf32>, tensor<6x12xf32>, tensor<6x12xf32>) -> tensor<18x12xf32>
    %2 = stablehlo.dot_general %1, %arg1, batching_dims = [0] x [0], contracting_dims = [1] x [2] : (tensor<18x12xf32>, tensor<18x6x12xf32>) -> tensor<18x6xf32>
    return %2 : tensor<18x6xf32>
  }
}
