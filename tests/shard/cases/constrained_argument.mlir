// A constraint is the sharding of an argument that has no other; what else reads it splits it no
// further.
module {
  sdy.mesh @mesh = <["x"=2, "y"=4]>
  func.func @main(
      %a: tensor<8x8xf32>,
      %b: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {"y"}]>}) -> (tensor<8x8xf32>, tensor<8x8xf32>) {
    %0 = sdy.sharding_constraint %a <@mesh, [{}, {"y"}]> : tensor<8x8xf32>
    %1 = stablehlo.add %a, %b : tensor<8x8xf32>
    %2 = stablehlo.sine %0 : tensor<8x8xf32>
    return %1, %2 : tensor<8x8xf32>, tensor<8x8xf32>
  }
}
