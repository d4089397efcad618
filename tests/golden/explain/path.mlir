// An axis goes from an argument through a product; the other dims are not reached, or closed.
sdy.mesh @mesh = <["x"=2, "y"=4]>
func.func @main(
    %x: tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>} loc("x"("model.py":1:9)),
    %w: tensor<16x4xf32> loc("w"("model.py":1:12))) -> tensor<8x4xf32> {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
      : (tensor<8x16xf32>, tensor<16x4xf32>) -> tensor<8x4xf32> loc("model.py":2:7)
  %1 = stablehlo.tanh %0 : tensor<8x4xf32> loc("model.py":3:10)
  return %1 : tensor<8x4xf32>
}
// ----- notes
none
// ----- %arg0
%arg0 (x): argument, tensor<8x16xf32>, <@mesh, [{"x"}, {}]>
  --> model.py:1
  dim 0 (size 8) is split by "x"
    the annotation of the argument (model.py:1) puts "x" on dim 0 of %arg0 (x)
  dim 1 (size 16) is whole
    the annotation of the argument (model.py:1) keeps it whole
// ----- %arg1
%arg1 (w): argument, tensor<16x4xf32>, replicated
  --> model.py:1
  dim 0 (size 16) is whole
    nothing reached it
  dim 1 (size 4) is whole
    nothing reached it
// ----- %1
%1: tanh, tensor<8x4xf32>, <@mesh, [{"x"}, {}]>
  --> model.py:3
  dim 0 (size 8) is split by "x"
    the annotation of the argument (model.py:1) puts "x" on dim 0 of %arg0 (x)
    dot_general (model.py:2) carries it from dim 0 of %arg0 (x) to dim 0 of %0
    tanh (model.py:3) carries it from dim 0 of %0 to dim 0 of %1
  dim 1 (size 4) is whole
    nothing reached it
