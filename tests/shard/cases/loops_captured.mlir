// Values captured by loops and branches from outside.
func.func @main(%a: tensor<8x8xf32>, %b: tensor<8x8xf32>, %i: tensor<i32>, %p: tensor<i1>) -> (tensor<8x8xf32>,tensor<8x8xf32>, tensor<8x8xf32>) {
  %0 = stablehlo.sine %a : tensor<8x8xf32>
  %w:2 = stablehlo.while(%x = %a, %xx = %b) : tensor<8x8xf32>, tensor<8x8xf32> cond { 
   stablehlo.return %p : tensor<i1> } do { %s = stablehlo.add %x, %a : tensor<8x8xf32>
     %w2 = stablehlo.while(%x2 = %a) : tensor<8x8xf32> cond { 
   stablehlo.return %p : tensor<i1> } do { %s2 = stablehlo.add %x2, %a : tensor<8x8xf32>
    stablehlo.return %s2 : tensor<8x8xf32> }
     %s3 = stablehlo.add %s, %a : tensor<8x8xf32>
   stablehlo.return %s3, %a : tensor<8x8xf32>, tensor<8x8xf32> }
  %8 = stablehlo.add %a, %w#0 : tensor<8x8xf32>
  %cs = "stablehlo.case"(%i) ({ %z=stablehlo.sine %a : tensor<8x8xf32>
   stablehlo.return %z : tensor<8x8xf32> }, {stablehlo.return %a : tensor<8x8xf32>}) : (tensor<i32>) -> tensor<8x8xf32>
  return %8, %cs, %a : tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>
}
