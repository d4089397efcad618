// Nothing passes through ops that Shardy has no rule for, a reshard among them, nor through an if.
sdy.mesh @mesh = <["x"=2, "y"=4]>
func.func @main(%a: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {?}]>}, %p: tensor<i1>) -> (tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>) {
  %0 = chlo.erf %a : tensor<8x8xf32> -> tensor<8x8xf32>
  %1 = sdy.reshard %a <@mesh, [{}, {"y"}]> : tensor<8x8xf32>
  %2 = "stablehlo.if"(%p) ({
    stablehlo.return %a : tensor<8x8xf32>
  }, {
    stablehlo.return %a : tensor<8x8xf32>
  }) : (tensor<i1>) -> tensor<8x8xf32>
  return %0, %1, %2 : tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>
}
