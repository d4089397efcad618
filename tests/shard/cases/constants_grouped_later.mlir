// A copy of a constant belongs to the groups of the constant, wherever they stand.
sdy.mesh @mesh = <["x"=2, "y"=2, "z"=2]>
func.func @main(%a: tensor<1x4x16xf32>) -> tensor<1x4x16xf32> {
  %v39 = stablehlo.constant dense<1.0> : tensor<f32>
  %v40 = stablehlo.broadcast_in_dim %v39, dims = [] : (tensor<f32>) -> tensor<1x4x7xf32>
  %v41 = stablehlo.constant dense<0> : tensor<i32>
  %v42 = stablehlo.dynamic_update_slice %a, %v40, %v41, %v41, %v41 : (tensor<1x4x16xf32>, tensor<1x4x7xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x4x16xf32>
  sdy.sharding_group %v40 group_id=32650 : tensor<1x4x7xf32>
  return %a : tensor<1x4x16xf32>
}
