// What Shardy drops when nobody reads it, and what it keeps.
sdy.mesh @mesh = <["x"=2, "y"=4]>
func.func private @g(%a: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %0 = stablehlo.sine %a : tensor<8x8xf32>
  return %0 : tensor<8x8xf32>
}
func.func private @unused(%a: tensor<8x8xf32>) -> tensor<8x8xf32> {
  return %a : tensor<8x8xf32>
}
func.func @main(%a: tensor<8x8xf32> {sdy.sharding=#sdy.sharding<@mesh,[{"x"},{?}]>}, %i: tensor<i32>, %t: !stablehlo.token) -> tensor<8x8xf32> {
  %d = stablehlo.cosine %a : tensor<8x8xf32>
  %d1 = stablehlo.cosine %d : tensor<8x8xf32>
  %0 = call @g(%a) : (tensor<8x8xf32>) -> tensor<8x8xf32>
  %2 = sdy.sharding_constraint %d1 <@mesh, [{},{"x"}]> : tensor<8x8xf32>
  %b = sdy.propagation_barrier %d1 allowed_direction=FORWARD : tensor<8x8xf32>
  %r = sdy.reshard %d1 <@mesh, [{},{"x"}]> : tensor<8x8xf32>
  %w = stablehlo.while(%x = %a) : tensor<8x8xf32> cond { %c = stablehlo.constant dense<true> : tensor<i1>
   stablehlo.return %c : tensor<i1> } do { %s = stablehlo.sine %x : tensor<8x8xf32>
   stablehlo.return %s : tensor<8x8xf32> }
  %cc = stablehlo.custom_call @foo(%a) : (tensor<8x8xf32>) -> tensor<8x8xf32>
  %ob = stablehlo.optimization_barrier %a : tensor<8x8xf32>
  %cs = "stablehlo.case"(%i) ({ stablehlo.return %a : tensor<8x8xf32> }, {stablehlo.return %a : tensor<8x8xf32>}) : (tensor<i32>) -> tensor<8x8xf32>
  %ii = stablehlo.iota dim=0 : tensor<8xf32>
  %k = stablehlo.constant dense<1.0> : tensor<8xf32>
  return %a : tensor<8x8xf32>
}
