// Functions that make constants of constants are copied with them.
sdy.mesh @mesh = <["x"=8]>
func.func private @exp(%a: tensor<6x4xf32>) -> (tensor<6x4xf32>) {
  %0 = stablehlo.exponential %a : tensor<6x4xf32>
  return %0 : tensor<6x4xf32>
}
func.func private @two(%a: tensor<6x4xf32>, %b: tensor<6x4xf32>) -> (tensor<6x4xf32>, tensor<6x4xf32>) {
  %0 = stablehlo.add %a, %b : tensor<6x4xf32>
  %1 = func.call @exp(%0) : (tensor<6x4xf32>) -> (tensor<6x4xf32>)
  return %0, %1 : tensor<6x4xf32>, tensor<6x4xf32>
}
func.func private @none() -> (tensor<6x4xf32>) {
  %0 = stablehlo.constant dense<2.0> : tensor<6x4xf32>
  %1 = stablehlo.sine %0 : tensor<6x4xf32>
  %2 = stablehlo.cosine %0 : tensor<6x4xf32>
  %3 = stablehlo.add %1, %2 : tensor<6x4xf32>
  return %3 : tensor<6x4xf32>
}
func.func private @part(%a: tensor<6x4xf32>, %b: tensor<6x4xf32>) -> (tensor<6x4xf32>, tensor<6x4xf32>) {
  %0 = stablehlo.sine %a : tensor<6x4xf32>
  %1 = stablehlo.transpose %b, dims = [1,0] : (tensor<6x4xf32>) -> tensor<4x6xf32>
  %2 = stablehlo.transpose %1, dims = [1,0] : (tensor<4x6xf32>) -> tensor<6x4xf32>
  return %0, %2 : tensor<6x4xf32>, tensor<6x4xf32>
}
func.func private @inner(%a: tensor<6x4xf32>) -> (tensor<6x4xf32>) {
  %k = stablehlo.constant dense<2.0> : tensor<6x4xf32>
  %0 = stablehlo.add %a, %k : tensor<6x4xf32>
  %1 = stablehlo.add %0, %k : tensor<6x4xf32>
  return %1 : tensor<6x4xf32>
}
func.func private @sc(%a: tensor<f32>) -> (tensor<6x4xf32>) {
  %1 = stablehlo.broadcast_in_dim %a, dims=[] : (tensor<f32>) -> tensor<6x4xf32>
  return %1 : tensor<6x4xf32>
}
func.func @main(%v: tensor<6x4xf32>, %s: tensor<f32>) -> (tensor<6x4xf32>, tensor<6x4xf32>, tensor<6x4xf32>, tensor<6x4xf32>, tensor<6x4xf32>, tensor<6x4xf32>,  tensor<6x4xf32>, tensor<6x4xf32>, tensor<6x4xf32>, tensor<6x4xf32>, tensor<6x4xf32>, tensor<6x4xf32>) {
  %c = stablehlo.constant dense<1.0> : tensor<6x4xf32>
  %0 = func.call @exp(%c) : (tensor<6x4xf32>) -> (tensor<6x4xf32>)
  %1:2 = func.call @two(%c, %c) : (tensor<6x4xf32>, tensor<6x4xf32>) -> (tensor<6x4xf32>, tensor<6x4xf32>)
  %2 = func.call @none() : () -> (tensor<6x4xf32>)
  %3:2 = func.call @part(%c, %c) : (tensor<6x4xf32>, tensor<6x4xf32>) -> (tensor<6x4xf32>, tensor<6x4xf32>)
  %4 = func.call @inner(%c) : (tensor<6x4xf32>) -> (tensor<6x4xf32>)
  %5 = func.call @inner(%v) : (tensor<6x4xf32>) -> (tensor<6x4xf32>)
  %6:2 = func.call @two(%c, %v) : (tensor<6x4xf32>, tensor<6x4xf32>) -> (tensor<6x4xf32>, tensor<6x4xf32>)
  %7 = func.call @sc(%s) : (tensor<f32>) -> (tensor<6x4xf32>)
  %sk = stablehlo.constant dense<1.0> : tensor<f32>
  %8 = func.call @sc(%sk) : (tensor<f32>) -> (tensor<6x4xf32>)
  %a0 = stablehlo.add %v, %0 : tensor<6x4xf32>
  %a1 = stablehlo.add %a0, %1#0 : tensor<6x4xf32>
  %a2 = stablehlo.add %a1, %1#1 : tensor<6x4xf32>
  %a3 = stablehlo.add %a2, %2 : tensor<6x4xf32>
  %a4 = stablehlo.add %a3, %3#0 : tensor<6x4xf32>
  %a5 = stablehlo.add %a4, %3#1 : tensor<6x4xf32>
  %a6 = stablehlo.add %a5, %4 : tensor<6x4xf32>
  %a7 = stablehlo.add %a6, %5 : tensor<6x4xf32>
  %a8 = stablehlo.add %a7, %6#0 : tensor<6x4xf32>
  %a9 = stablehlo.add %a8, %7 : tensor<6x4xf32>
  %a10 = stablehlo.add %a9, %8 : tensor<6x4xf32>
  return %a10, %0, %1#0, %1#1, %2, %3#0, %3#1, %4, %5, %6#0, %7, %8 : tensor<6x4xf32>, tensor<6x4xf32>,  tensor<6x4xf32>, tensor<6x4xf32>, tensor<6x4xf32>, tensor<6x4xf32>, tensor<6x4xf32>, tensor<6x4xf32>,  tensor<6x4xf32>, tensor<6x4xf32>, tensor<6x4xf32>, tensor<6x4xf32>
}
