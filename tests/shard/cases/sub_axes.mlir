// Reshapes cut axes into parts and put them together again.
sdy.mesh @mesh = <["x"=4, "y"=8]>
func.func @main(%a: tensor<32x6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"y", ?}, {"x":(1)2, ?}]>}, %b: tensor<2x4x4x6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{?}, {"x":(2)2}, {?}, {?}]>}) -> (tensor<192xf32>, tensor<8x24xf32>) {
  %0 = stablehlo.reshape %a : (tensor<32x6xf32>) -> tensor<2x4x4x6xf32>
  %1 = stablehlo.add %0, %b : tensor<2x4x4x6xf32>
  %2 = stablehlo.reshape %1 : (tensor<2x4x4x6xf32>) -> tensor<192xf32>
  %3 = stablehlo.reshape %1 : (tensor<2x4x4x6xf32>) -> tensor<8x24xf32>
  return %2, %3 : tensor<192xf32>, tensor<8x24xf32>
}
