// Tokens have no shardings; the results of one op have shardings together.
sdy.mesh @mesh = <["x"=2, "y"=4]>
func.func @main(%a: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {?}]>}, %t: !stablehlo.token, %p: tensor<i1>) -> (tensor<8x8xf32>, tensor<8x8xf32>, !stablehlo.token, tensor<8x8xf32>) {
  %0:2 = stablehlo.custom_call @foo(%a, %t) {has_side_effect = true} : (tensor<8x8xf32>, !stablehlo.token) -> (tensor<8x8xf32>, !stablehlo.token)
  %1 = stablehlo.add %0#0, %a : tensor<8x8xf32>
  %2:2 = stablehlo.while(%x = %1, %u = %0#1) : tensor<8x8xf32>, !stablehlo.token cond {
    stablehlo.return %p : tensor<i1>
  } do {
    %5 = stablehlo.sine %x : tensor<8x8xf32>
    stablehlo.return %5, %u : tensor<8x8xf32>, !stablehlo.token
  }
  %3:2 = "stablehlo.sort"(%2#0, %a) <{dimension = 1 : i64}> ({
  ^bb0(%b: tensor<f32>, %c: tensor<f32>, %d: tensor<f32>, %e: tensor<f32>):
    %6 = stablehlo.compare LT, %b, %c : (tensor<f32>, tensor<f32>) -> tensor<i1>
    stablehlo.return %6 : tensor<i1>
  }) : (tensor<8x8xf32>, tensor<8x8xf32>) -> (tensor<8x8xf32>, tensor<8x8xf32>)
  return %3#0, %3#1, %2#1, %1 : tensor<8x8xf32>, tensor<8x8xf32>, !stablehlo.token, tensor<8x8xf32>
}
