// Unreduced axes in the annotation of a call alone make no reshard.
module {
  sdy.mesh @mesh = <["x"=4, "y"=8]>
  func.func private @f0(%arg0: tensor<2x16x24xf32>, %arg1: tensor<24xf32>, %arg2: tensor<16x3x3xf32>, %arg3: tensor<16x16x1xi32>, %arg4: tensor<32xf32>) -> (tensor<16x16x3x3xf32>, tensor<i32>, tensor<i1>, tensor<2x16x24xf32>, tensor<f32>, tensor<2x16x8xf32>, tensor<2x16xf32>) {
    %0 = "stablehlo.gather"(%arg2, %arg3) <{dimension_numbers = #stablehlo.gather<offset_dims = [2, 3], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 2>, slice_sizes = array<i64: 1, 3, 3>}> : (tensor<16x3x3xf32>, tensor<16x16x1xi32>) -> tensor<16x16x3x3xf32>
    %1 = stablehlo.constant dense<0> : tensor<i32>
    %2 = stablehlo.constant dense<true> : tensor<i1>
    %3 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %4 = stablehlo.broadcast_in_dim %3, dims = [] : (tensor<f32>) -> tensor<2x16x8xf32>
    %5 = stablehlo.concatenate %4, %arg0, dim = 2 : (tensor<2x16x8xf32>, tensor<2x16x24xf32>) -> tensor<2x16x32xf32>
    %6 = stablehlo.dot_general %5, %arg4, contracting_dims = [2] x [0] : (tensor<2x16x32xf32>, tensor<32xf32>) -> tensor<2x16xf32>
    return %0, %1, %2, %arg0, %3, %4, %6 : tensor<16x16x3x3xf32>, tensor<i32>, tensor<i1>, tensor<2x16x24xf32>, tensor<f32>, tensor<2x16x8xf32>, tensor<2x16xf32>
  }
  func.func @main(%arg0: tensor<24xf32>, %arg1: tensor<16x3x3xf32>, %arg2: tensor<32xf32>, %arg3: tensor<16x16x1xi32>, %arg4: tensor<2x16x24xf32>) -> tensor<f32> {
    %0:7 = "func.call"(%arg4, %arg0, %arg1, %arg3, %arg2) <{callee = @f0}> {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{?}, {"y", ?}, {?}, {?}]>, <@mesh, []>, <@mesh, [], replicated={"x", "y":(2)4}>, <@mesh, [{}, {}, {"x"}]>, <@mesh, [], unreduced={"x", "y":(1)4}>, <@mesh, [{}, {?}, {}]>, <@mesh, [{"y", ?}p3, {?}]>]>} : (tensor<2x16x24xf32>, tensor<24xf32>, tensor<16x3x3xf32>, tensor<16x16x1xi32>, tensor<32xf32>) -> (tensor<16x16x3x3xf32>, tensor<i32>, tensor<i1>, tensor<2x16x24xf32>, tensor<f32>, tensor<2x16x8xf32>, tensor<2x16xf32>)
    return %0#4 : tensor<f32>
  }
}
