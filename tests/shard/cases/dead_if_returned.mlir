// The same, with an annotation deep inside.
module {
  sdy.mesh @mesh = <["x"=1, "y"=4, "z"=2]>
  func.func @main(%arg0: tensor<6x8x2xf32>) -> tensor<6x8x2xf32> {
    return %arg0 : tensor<6x8x2xf32>
  }
  func.func @main1(%arg0: tensor<24x8xf32>, %arg1: tensor<4x12xf32>, %arg2: tensor<8xf32>, %arg3: tensor<4x8xf32>) -> (tensor<i1>, tensor<f32>, tensor<i1>, tensor<8x32x4xf32>, tensor<8xf32>, tensor<4x8xf32>) {
    %0 = stablehlo.constant dense<true> : tensor<i1>
    %1:2 = "stablehlo.if"(%0) ({
      stablehlo.return %arg1, %arg0 : tensor<4x12xf32>, tensor<24x8xf32>
    }, {
      %2 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
      %3 = stablehlo.dot_general %arg0, %2, contracting_dims = [] x [] {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"y", "x"}p0, {"z"}]>]>} : (tensor<24x8xf32>, tensor<f32>) -> tensor<24x8xf32>
      stablehlo.return %arg1, %arg0 : tensor<4x12xf32>, tensor<24x8xf32>
    }) : (tensor<i1>) -> (tensor<4x12xf32>, tensor<24x8xf32>)
    %4 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %5 = "sdy.manual_computation"(%arg2, %arg2) <{in_shardings = #sdy.sharding_per_value<[<@mesh, [{"z"}]>, <@mesh, [{"z"}]>]>, manual_axes = #sdy<manual_axes{"z"}>, out_shardings = #sdy.sharding_per_value<[<@mesh, [{}, {"x"}, {"z"}]>]>}> ({
    ^bb0(%arg4: tensor<4xf32>, %arg5: tensor<4xf32>):
      %6 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
      %7 = stablehlo.broadcast_in_dim %6, dims = [] : (tensor<f32>) -> tensor<16x8x8xf32>
      %8 = stablehlo.transpose %7, dims = [2, 1, 0] : (tensor<16x8x8xf32>) -> tensor<8x8x16xf32>
      sdy.return %8 : tensor<8x8x16xf32>
    }) : (tensor<8xf32>, tensor<8xf32>) -> tensor<8x8x32xf32>
    %9 = stablehlo.constant dense<true> : tensor<i1>
    %10 = stablehlo.dot_general %5, %arg3, contracting_dims = [0] x [1] : (tensor<8x8x32xf32>, tensor<4x8xf32>) -> tensor<8x32x4xf32>
    return %0, %4, %9, %10, %arg2, %arg3 : tensor<i1>, tensor<f32>, tensor<i1>, tensor<8x32x4xf32>, tensor<8xf32>, tensor<4x8xf32>
  }
}
