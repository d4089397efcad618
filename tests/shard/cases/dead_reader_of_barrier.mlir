// A barrier stays one when it becomes the only reader.
module {
  sdy.mesh @mesh = <["x"=8]>
  func.func @main(%arg0: tensor<16xf32>, %arg1: tensor<16x2xf32>, %arg2: tensor<2x16xf32>, %arg3: tensor<i1>, %arg4: tensor<16x2xf32>, %arg5: tensor<i32>) -> tensor<2x16xf32> {
    %0:2 = "stablehlo.while"(%arg0, %arg1) ({
    ^bb0(%arg6: tensor<16xf32>, %arg7: tensor<16x2xf32>):
      stablehlo.return %arg3 : tensor<i1>
    }, {
    ^bb0(%arg8: tensor<16xf32>, %arg9: tensor<16x2xf32>):
      %1:2 = "stablehlo.case"(%arg5) ({
        stablehlo.return %arg9, %arg0 : tensor<16x2xf32>, tensor<16xf32>
      }, {
        %2 = stablehlo.dot_general %arg4, %arg1, batching_dims = [1] x [1], contracting_dims = [0] x [0] : (tensor<16x2xf32>, tensor<16x2xf32>) -> tensor<2xf32>
        %3 = "sdy.propagation_barrier"(%arg4) <{allowed_direction = 1 : i32}> : (tensor<16x2xf32>) -> tensor<16x2xf32>
        stablehlo.return %3, %arg0 : tensor<16x2xf32>, tensor<16xf32>
      }) : (tensor<i32>) -> (tensor<16x2xf32>, tensor<16xf32>)
      stablehlo.return %1#1, %arg9 : tensor<16xf32>, tensor<16x2xf32>
    }) {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{?}]>, <@mesh, [{?}, {"x":(2)4, ?}p0], replicated={"x":(1)2}>]>} : (tensor<16xf32>, tensor<16x2xf32>) -> (tensor<16xf32>, tensor<16x2xf32>)
    return %arg2 : tensor<2x16xf32>
  }
}
