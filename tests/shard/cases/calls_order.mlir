// Values read by calls, by ops between them, and by a loop.
sdy.mesh @mesh = <["x"=2, "y"=4]>
func.func private @g(%a: tensor<8x8xf32>, %b: tensor<8x8xf32>) -> (tensor<8x8xf32>, tensor<8x8xf32>) {
  %0 = stablehlo.sine %a : tensor<8x8xf32>
  %1 = stablehlo.cosine %a : tensor<8x8xf32>
  %2 = stablehlo.add %0, %a : tensor<8x8xf32>
  %3 = stablehlo.add %2, %1 : tensor<8x8xf32>
  return %3, %a : tensor<8x8xf32>, tensor<8x8xf32>
}
func.func @main(%a: tensor<8x8xf32>, %b: tensor<8x8xf32>) -> (tensor<8x8xf32>,tensor<8x8xf32>, tensor<8x8xf32>) {
  %0 = stablehlo.sine %a : tensor<8x8xf32>
  %1:2 = call @g(%a, %b) : (tensor<8x8xf32>, tensor<8x8xf32>) -> (tensor<8x8xf32>, tensor<8x8xf32>)
  %2 = stablehlo.cosine %a : tensor<8x8xf32>
  %3:2 = call @g(%1#0, %a) : (tensor<8x8xf32>, tensor<8x8xf32>) -> (tensor<8x8xf32>, tensor<8x8xf32>)
  %4 = stablehlo.tanh %1#0 : tensor<8x8xf32>
  %5 = stablehlo.add %1#0, %4 : tensor<8x8xf32>
  %6 = stablehlo.add %1#1, %5 : tensor<8x8xf32>
  %7 = stablehlo.add %3#1, %6 : tensor<8x8xf32>
  %w = stablehlo.while(%x = %a) : tensor<8x8xf32> cond { %c = stablehlo.constant dense<true> : tensor<i1>
   stablehlo.return %c : tensor<i1> } do { %s = stablehlo.add %x, %a : tensor<8x8xf32>
     %s2 = stablehlo.add %s, %x : tensor<8x8xf32>
   stablehlo.return %s2 : tensor<8x8xf32> }
  %8 = stablehlo.add %w, %7 : tensor<8x8xf32>
  %9 = stablehlo.tanh %w : tensor<8x8xf32>
  %10 = stablehlo.add %9, %8 : tensor<8x8xf32>
  %11 = stablehlo.add %1#0, %10 : tensor<8x8xf32>
  return %11, %w, %a : tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>
}
