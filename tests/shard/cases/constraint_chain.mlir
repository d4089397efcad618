// Behind a chain of constraints the end of it is read instead of its beginning, but not by a return.
sdy.mesh @mesh = <["x"=2, "y"=4]>
func.func private @f(%a: tensor<8x8xf32>) -> (tensor<8x8xf32>, tensor<8x8xf32>) {
  %0 = stablehlo.sine %a : tensor<8x8xf32>
  %1 = sdy.sharding_constraint %0 <@mesh, [{"x"}, {}]> : tensor<8x8xf32>
  %2 = sdy.sharding_constraint %1 <@mesh, [{}, {"x"}]> : tensor<8x8xf32>
  return %0, %2 : tensor<8x8xf32>, tensor<8x8xf32>
}
func.func @main(%a: tensor<8x8xf32>) -> (tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>) {
  %0 = stablehlo.sine %a : tensor<8x8xf32>
  %1 = stablehlo.cosine %0 : tensor<8x8xf32>
  %2 = sdy.sharding_constraint %0 <@mesh, [{"x"}, {}]> : tensor<8x8xf32>
  %3 = sdy.sharding_constraint %2 <@mesh, [{}, {"y"}]> : tensor<8x8xf32>
  %4 = sdy.sharding_constraint %3 <@mesh, [{"y"}, {?}]> : tensor<8x8xf32>
  %5 = stablehlo.add %0, %1 : tensor<8x8xf32>
  %6:2 = call @f(%5) : (tensor<8x8xf32>) -> (tensor<8x8xf32>, tensor<8x8xf32>)
  %7 = stablehlo.add %6#0, %6#1 : tensor<8x8xf32>
  return %0, %4, %7 : tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>
}
