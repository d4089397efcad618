// Functions that nobody calls are propagated on their own; only main's results are looked at.
sdy.mesh @mesh = <["x"=2, "y"=4]>
func.func private @unused(%a: tensor<8x8xf32>) -> tensor<8x8xf32> {
  return %a : tensor<8x8xf32>
}
func.func private @decomposition(%a: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {?}]>}) -> tensor<8x8xf32> {
  %0 = stablehlo.sine %a : tensor<8x8xf32>
  return %0 : tensor<8x8xf32>
}
func.func @other(%a: tensor<8x8xf32>) -> (tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {?}]>}) {
  %0 = stablehlo.sine %a : tensor<8x8xf32>
  sdy.sharding_group %0 group_id = 1 : tensor<8x8xf32>
  return %0 : tensor<8x8xf32>
}
func.func @main(%a: tensor<8x8xf32>) -> (tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"y"}, {?}]>}) {
  %0 = stablehlo.composite "my.op" %a {decomposition = @decomposition} : (tensor<8x8xf32>) -> tensor<8x8xf32>
  %1 = stablehlo.sine %0 : tensor<8x8xf32>
  sdy.sharding_group %1 group_id = 1 : tensor<8x8xf32>
  return %1 : tensor<8x8xf32>
}
