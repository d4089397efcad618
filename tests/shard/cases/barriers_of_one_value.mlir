// Two optimization barriers on one value.
sdy.mesh @mesh = <["x"=2, "y"=4]>
  func.func @main(%arg0: tensor<8x3xf32>, %p: tensor<i1>) -> (tensor<8x3xf32>,tensor<8x3xf32>) {
    %0 = stablehlo.optimization_barrier %arg0 : tensor<8x3xf32>
    %1 = stablehlo.optimization_barrier {sdy.sharding=#sdy.sharding_per_value<[<@mesh, [{},{"y"}]>]>} %arg0 : tensor<8x3xf32>
    %2 = sdy.sharding_constraint %0 <@mesh, [{"x", "y"}, {?}]> : tensor<8x3xf32>
    return %1, %2 : tensor<8x3xf32>, tensor<8x3xf32>
  }
