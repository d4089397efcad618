// A concatenation whose result is unreduced along other axes than its operand.
module {
  sdy.mesh @mesh = <["x"=1, "y"=4, "z"=2]>
  func.func @main(%arg0: tensor<12xf32>, %arg1: tensor<24xf32>) -> tensor<36xf32> {
    %0 = "sdy.sharding_constraint"(%arg0) <{sharding = #sdy.sharding<@mesh, [{"y"}p2], unreduced={"x", "z"}>}> : (tensor<12xf32>) -> tensor<12xf32>
    %1 = stablehlo.concatenate %arg1, %0, dim = 0 {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"y":(1)2, "x", ?}], unreduced={"y":(2)2}>]>} : (tensor<24xf32>, tensor<12xf32>) -> tensor<36xf32>
    return %1 : tensor<36xf32>
  }
}
