// A constraint with unreduced axes: the edge is unreduced, too.
sdy.mesh @mesh = <["x"=2, "y"=2, "z"=2]>
func.func @main(%a: tensor<8x8xf32>) -> (tensor<8x8xf32>, tensor<8x8xf32>) {
  %w = stablehlo.while(%b = %a) : tensor<8x8xf32>
  cond {
  %v36 = stablehlo.constant dense<true> : tensor<i1>
  stablehlo.return %v36 : tensor<i1>
 } do {
   stablehlo.return %b : tensor<8x8xf32>
 }
  %v19 = sdy.sharding_constraint %w <@mesh, [{"z"}, {}], unreduced={"y"}> : tensor<8x8xf32>
  %1 = stablehlo.sine %w : tensor<8x8xf32>
  %v3 = stablehlo.add %1, %a : tensor<8x8xf32>
  %2 = stablehlo.sine %v3 : tensor<8x8xf32>
  %v4 = sdy.sharding_constraint %2 <@mesh, [{"z",?}, {?}], unreduced={"y"}> : tensor<8x8xf32>
  %5 = stablehlo.sine %v4 : tensor<8x8xf32>
  return %1, %v4 : tensor<8x8xf32>, tensor<8x8xf32>
}
