// A product whose sizes do not fit: `weft check` shows where.
func.func @main(%x: tensor<8x512xf32>, %w: tensor<256x1024xf32>) -> tensor<8x1024xf32> {
  %h = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<8x512xf32>, tensor<256x1024xf32>) -> tensor<8x1024xf32>
  return %h : tensor<8x1024xf32>
}
