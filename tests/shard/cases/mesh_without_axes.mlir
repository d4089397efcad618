// An empty mesh goes with any other.
sdy.mesh @mesh = <["x"=2, "y"=4]>
sdy.mesh @e = <[]>
func.func @main(%a: tensor<8x8xf32> {sdy.sharding=#sdy.sharding<@e,[{},{?}]>}, %b: tensor<8x8xf32> {sdy.sharding=#sdy.sharding<@mesh,[{?},{"x", ?}]>}, %c: tensor<8x8xf32>) -> (tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>) {
  %0 = stablehlo.add %a, %b : tensor<8x8xf32>
  %1 = stablehlo.add %a, %c : tensor<8x8xf32>
  return %0, %1, %a : tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>
}
