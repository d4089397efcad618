// Both operands bring one axis, to two dims of the result.
sdy.mesh @mesh = <["x"=2, "y"=4]>
func.func @main(
    %x: tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>},
    %w: tensor<16x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>}) -> tensor<8x4xf32> {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
      : (tensor<8x16xf32>, tensor<16x4xf32>) -> tensor<8x4xf32> loc("model.py":2:7)
  return %0 : tensor<8x4xf32>
}
// ----- notes
conflict: dot_general: dim 1 of %arg1 is split by "x", dim 1 of %0 is not: "x" splits dim 0 of it already
  --> model.py:2
// ----- %0
%0: dot_general, tensor<8x4xf32>, <@mesh, [{"x"}, {}]>
  --> model.py:2
  dim 0 (size 8) is split by "x"
    the annotation of the argument (-:4) puts "x" on dim 0 of %arg0
    dot_general (model.py:2) carries it from dim 0 of %arg0 to dim 0 of %0
  dim 1 (size 4) is whole
    dot_general: dim 1 of %arg1 is split by "x", dim 1 of %0 is not: "x" splits dim 0 of it already
