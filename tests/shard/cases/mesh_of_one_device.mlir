// A value on one device stops all shardings.
sdy.mesh @mesh = <["x"=2, "y"=4]>
sdy.mesh @max = <[], device_ids=[0]>
func.func @main(%a: tensor<8x8xf32> {sdy.sharding=#sdy.sharding<@max,[]>}, %b: tensor<8x8xf32> {sdy.sharding=#sdy.sharding<@mesh,[{"x"},{?}]>}, %c: tensor<8x8xf32>) -> (tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>) {
  %0 = stablehlo.add %a, %b : tensor<8x8xf32>
  %1 = stablehlo.add %a, %c : tensor<8x8xf32>
  %2 = stablehlo.custom_call @foo(%c) {sdy.sharding=#sdy.sharding_per_value<[<@max,[]>]>} : (tensor<8x8xf32>) -> tensor<8x8xf32>
  %3 = stablehlo.sine %2 : tensor<8x8xf32>
  return %0, %1, %3, %a : tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>
}
