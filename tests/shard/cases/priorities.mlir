// Dims of priority 0 are propagated first, then those of 1 and 2; the axes of the others are kept from use.
sdy.mesh @mesh = <["x"=2, "y"=4, "z"=2]>
func.func @main(%a: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}p1, {"y", ?}p2]>}, %b: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"y"}p0, {?}p1], replicated={"z"}>}, %c: tensor<8x8xf32>) -> (tensor<8x8xf32>, tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{?}p2, {"z", ?}p1]>}) {
  %0 = stablehlo.add %a, %b : tensor<8x8xf32>
  %1 = stablehlo.dot_general %0, %c, contracting_dims = [1] x [0] : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  return %0, %1 : tensor<8x8xf32>, tensor<8x8xf32>
}
