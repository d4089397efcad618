// Conflicting ways meet at the tanh; a dead pad keeps one of them waiting.
module {
  sdy.mesh @mesh = <["x"=1, "y"=4, "z"=2]>
  func.func @main(%arg0: tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"y":(1)2, "z"}]>}, %arg1: tensor<f32>) -> (tensor<1x2x1x2xf32>, tensor<2x1x2xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"z"}, {}, {"y"}]>}) {
    %0 = stablehlo.reshape %arg0 : (tensor<4xf32>) -> tensor<2x1x2xf32>
    %1 = stablehlo.reshape %0 : (tensor<2x1x2xf32>) -> tensor<1x2x1x2xf32>
    %2 = stablehlo.tanh %0 : tensor<2x1x2xf32>
    %3 = stablehlo.abs %2 : tensor<2x1x2xf32>
    %4 = stablehlo.pad %2, %arg1, low = [1, 1, 1], high = [2, 1, 2], interior = [0, 1, 1] : (tensor<2x1x2xf32>, tensor<f32>) -> tensor<5x3x6xf32>
    return %1, %3 : tensor<1x2x1x2xf32>, tensor<2x1x2xf32>
  }
}
