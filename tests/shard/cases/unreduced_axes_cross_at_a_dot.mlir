// A dot whose result is unreduced along other axes than its operand.
module {
  sdy.mesh @mesh = <["x"=2, "y"=2, "z"=2]>
  func.func @main(%arg0: tensor<15xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}], unreduced={"y", "z"}>}, %arg1: tensor<15x6xf32>) -> tensor<15x6xf32> {
    %0 = stablehlo.dot_general %arg0, %arg1, contracting_dims = [0] x [0] : (tensor<15xf32>, tensor<15x6xf32>) -> tensor<6xf32>
    %1 = "sdy.sharding_constraint"(%0) <{sharding = #sdy.sharding<@mesh, [{"z", "y"}], unreduced={"x"}>}> : (tensor<6xf32>) -> tensor<6xf32>
    return %arg1 : tensor<15x6xf32>
  }
}
