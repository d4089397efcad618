// Functions called several times, from each other and from loops.
func.func private @g(%a: tensor<8x8xf32>) -> (tensor<8x8xf32>) {
  %0 = stablehlo.sine %a : tensor<8x8xf32>
  %1 = stablehlo.cosine %a : tensor<8x8xf32>
  return %1 : tensor<8x8xf32>
}
func.func private @f(%a: tensor<8x8xf32>, %p: tensor<i1>) -> (tensor<8x8xf32>, tensor<8x8xf32>) {
  %0 = func.call @g(%a) : (tensor<8x8xf32>) -> tensor<8x8xf32>
  %1 = func.call @g(%a) : (tensor<8x8xf32>) -> tensor<8x8xf32>
  %2 = stablehlo.add %0, %a : tensor<8x8xf32>
  %3 = stablehlo.add %0, %1 : tensor<8x8xf32>
  %w = stablehlo.while(%x = %a) : tensor<8x8xf32> cond { 
   stablehlo.return %p : tensor<i1> } do { %s = stablehlo.add %x, %a : tensor<8x8xf32>
    %s2 = stablehlo.add %x, %0 : tensor<8x8xf32>
    %s3 = func.call @g(%a) : (tensor<8x8xf32>) -> tensor<8x8xf32>
    %s4 = func.call @g(%x) : (tensor<8x8xf32>) -> tensor<8x8xf32>
    stablehlo.return %s2 : tensor<8x8xf32> }
  %4 = stablehlo.sine %a : tensor<8x8xf32>
  %5 = func.call @g(%a) : (tensor<8x8xf32>) -> tensor<8x8xf32>
  return %3, %w : tensor<8x8xf32>, tensor<8x8xf32>
}
func.func @main(%a: tensor<8x8xf32>, %p: tensor<i1>) -> (tensor<8x8xf32>,tensor<8x8xf32>, tensor<8x8xf32>) {
  %0 = stablehlo.sine %a : tensor<8x8xf32>
  %1:2 = func.call @f(%a, %p) : (tensor<8x8xf32>, tensor<i1>) -> (tensor<8x8xf32>, tensor<8x8xf32>)
  %2 = func.call @g(%a) : (tensor<8x8xf32>) -> (tensor<8x8xf32>)
  %3:2 = func.call @f(%1#0, %p) : (tensor<8x8xf32>, tensor<i1>) -> (tensor<8x8xf32>, tensor<8x8xf32>)
  %4 = func.call @g(%1#0) : (tensor<8x8xf32>) -> (tensor<8x8xf32>)
  return %1#0, %2, %3#0 : tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>
}
