// A closed constraint on the result of a call: all others read the constraint.
sdy.mesh @mesh = <["x"=2, "y"=4]>
func.func @g(%a: tensor<8x8xf32> {sdy.sharding=#sdy.sharding<@mesh,[{"y"},{?}]>}) -> tensor<8x8xf32> {
  %0 = stablehlo.sine %a : tensor<8x8xf32>
  return %0 : tensor<8x8xf32>
}
func.func @main(%a: tensor<8x8xf32> {sdy.sharding=#sdy.sharding<@mesh,[{"x"},{?}]>}) -> tensor<8x8xf32> {
  %d = stablehlo.cosine %a : tensor<8x8xf32>
  %0 = call @g(%a) : (tensor<8x8xf32>) -> tensor<8x8xf32>
  %1 = call @g(%0) : (tensor<8x8xf32>) -> tensor<8x8xf32>
  %2 = sdy.sharding_constraint %1 <@mesh, [{},{"x"}]> : tensor<8x8xf32>
  %3 = stablehlo.add %1, %2 : tensor<8x8xf32>
  return %3 : tensor<8x8xf32>
}
