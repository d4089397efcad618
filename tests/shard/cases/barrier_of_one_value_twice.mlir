// One optimization barrier on one value twice.
sdy.mesh @mesh = <["x"=2, "y"=4]>
  func.func @main(%arg0: tensor<8x3xf32>, %p: tensor<i1>) -> (tensor<8x3xf32>,tensor<8x3xf32>) {
    %0:2 = stablehlo.optimization_barrier {sdy.sharding=#sdy.sharding_per_value<[<@mesh, [{?},{?}]>,<@mesh, [{},{"y"}]>]>} %arg0, %arg0 : tensor<8x3xf32>, tensor<8x3xf32>
    
    %2 = sdy.sharding_constraint %0#0 <@mesh, [{"x", "y"}, {?}]> : tensor<8x3xf32>
    return %0#1, %2 : tensor<8x3xf32>, tensor<8x3xf32>
  }
