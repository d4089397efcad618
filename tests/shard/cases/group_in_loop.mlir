// An argument of a loop follows its group, but the group does not follow the loop.
sdy.mesh @mesh = <["x"=2, "y"=4]>
func.func @main(%a: tensor<8x8xf32>, %b: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {?}]>}, %c: tensor<8x8xf32>, %d: tensor<8x8xf32>, %p: tensor<i1>) -> (tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>) {
  %0:2 = stablehlo.while(%x = %a, %y = %b) : tensor<8x8xf32>, tensor<8x8xf32> cond {
    stablehlo.return %p : tensor<i1>
  } do {
    sdy.sharding_group %x group_id = 1 : tensor<8x8xf32>
    sdy.sharding_group %y group_id = 2 : tensor<8x8xf32>
    stablehlo.return %x, %y : tensor<8x8xf32>, tensor<8x8xf32>
  }
  %1 = stablehlo.sine %b : tensor<8x8xf32>
  sdy.sharding_group %1 group_id = 1 : tensor<8x8xf32>
  %2 = stablehlo.sine %c : tensor<8x8xf32>
  sdy.sharding_group %2 group_id = 2 : tensor<8x8xf32>
  return %0#0, %1, %2 : tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>
}
