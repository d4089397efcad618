// Rules on the ops themselves: factors that merge, sum, stay whole, and are blocked; and calls by name.
sdy.mesh @mesh = <["x"=2, "y"=4]>
func.func @main(%a: tensor<4x8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {"y"}, {?}]>}, %b: tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {"y"}]>}, %i: tensor<8x16xi32>, %z: tensor<f32>, %n: tensor<i32>) -> (tensor<32xf32>, tensor<8x16xf32>, tensor<8x16xf32>, tensor<8x16xf32>, tensor<8x4xf32>, tensor<8x4xf32>) {
  %0 = stablehlo.custom_call @merge(%a) {sdy.sharding_rule = #sdy.op_sharding_rule<([i, j, k])->([ij]) {i=4, j=8, k=16} reduction={k}, custom>} : (tensor<4x8x16xf32>) -> tensor<32xf32>
  %1 = stablehlo.custom_call @whole(%b) {sdy.sharding_rule = #sdy.op_sharding_rule<([i, j])->([i, j]) {i=8, j=16} need_replication={j}, custom>} : (tensor<8x16xf32>) -> tensor<8x16xf32>
  %2 = stablehlo.custom_call @blocked(%b) {sdy.sharding_rule = #sdy.op_sharding_rule<([i, j])->([i, j]) {i=8, j=16} blocked_propagation={i}, custom>} : (tensor<8x16xf32>) -> tensor<8x16xf32>
  %3 = stablehlo.custom_call @unknown(%b) : (tensor<8x16xf32>) -> tensor<8x16xf32>
  %4:2 = stablehlo.custom_call @mhlo.topk(%b) : (tensor<8x16xf32>) -> (tensor<8x4xf32>, tensor<8x4xi32>)
  %5:2 = stablehlo.custom_call @ApproxTopK(%b, %i, %z, %n) : (tensor<8x16xf32>, tensor<8x16xi32>, tensor<f32>, tensor<i32>) -> (tensor<8x4xf32>, tensor<8x4xi32>)
  return %0, %1, %2, %3, %4#0, %5#0 : tensor<32xf32>, tensor<8x16xf32>, tensor<8x16xf32>, tensor<8x16xf32>, tensor<8x4xf32>, tensor<8x4xf32>
}
