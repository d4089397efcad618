// Members that disagree get open constraints behind them; groups that share a value are one.
sdy.mesh @mesh = <["x"=2, "y"=4, "o"=1]>
func.func private @g(%a: tensor<16x16xf32>) -> tensor<16x16xf32> {
  sdy.sharding_group %a group_id=7 : tensor<16x16xf32>
  %0 = stablehlo.sine %a : tensor<16x16xf32>
  return %0 : tensor<16x16xf32>
}
func.func @main(%a: tensor<16x16xf32>, %b: tensor<16x16xf32> {sdy.sharding=#sdy.sharding<@mesh,[{"x",?},{?}]>}, %c: tensor<16x16xf32> {sdy.sharding=#sdy.sharding<@mesh,[{?},{"y",?}]>}, %d: tensor<16x16xf32> ) -> (tensor<16x16xf32>,tensor<16x16xf32>) {
  %0 = stablehlo.sine %a : tensor<16x16xf32>
  %1 = stablehlo.add %b, %0 : tensor<16x16xf32>
  %2 = stablehlo.add %c, %d : tensor<16x16xf32>
  sdy.sharding_group %b group_id=3 : tensor<16x16xf32>
  sdy.sharding_group %c group_id=3 : tensor<16x16xf32>
  sdy.sharding_group %1 group_id=3 : tensor<16x16xf32>
  sdy.sharding_group %0 group_id=5 : tensor<16x16xf32>
  sdy.sharding_group %d group_id=5 : tensor<16x16xf32>
  sdy.sharding_group %d group_id=5 : tensor<16x16xf32>
  sdy.sharding_group %d group_id=2 : tensor<16x16xf32>
  %cst = sdy.sharding_constraint %d <@mesh, [{"y"},{}]> : tensor<16x16xf32>
  %x = call @g(%a) : (tensor<16x16xf32>) -> tensor<16x16xf32>
  %y = call @g(%2) : (tensor<16x16xf32>) -> tensor<16x16xf32>
  %z = stablehlo.add %x, %y : tensor<16x16xf32>
  return %z, %1 : tensor<16x16xf32>, tensor<16x16xf32>
}
