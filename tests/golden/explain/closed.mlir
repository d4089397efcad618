// An annotation closes the dim that an axis would go on to, and so does that of the result.
sdy.mesh @mesh = <["x"=2, "y"=4]>
func.func @main(
    %x: tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"y"}]>},
    %w: tensor<16x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>} loc("w"("model.py":1:12)))
    -> (tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}) {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
      : (tensor<8x16xf32>, tensor<16x4xf32>) -> tensor<8x4xf32> loc("model.py":2:7)
  return %0 : tensor<8x4xf32>
} loc("model.py":1:1)
// ----- notes
conflict: dot_general: dim 1 of %arg0 is split by "y", dim 0 of %arg1 (w) is not: the annotation of the argument (model.py:1) closes it
  --> model.py:2
conflict: the return: dim 1 of %0 is split by "x", dim 1 of result 0 is not: the annotation of result 0 (model.py:1) closes it
  --> model.py:1
// ----- %arg1
%arg1 (w): argument, tensor<16x4xf32>, <@mesh, [{}, {"x"}]>
  --> model.py:1
  dim 0 (size 16) is whole
    dot_general: dim 1 of %arg0 is split by "y", dim 0 of %arg1 (w) is not: the annotation of the argument (model.py:1) closes it
  dim 1 (size 4) is split by "x"
    the annotation of the argument (model.py:1) puts "x" on dim 1 of %arg1 (w)
// ----- result0
result 0: declared result, tensor<8x4xf32>, <@mesh, [{}, {}]>
  --> model.py:1
  dim 0 (size 8) is whole
    the annotation of result 0 (model.py:1) keeps it whole
  dim 1 (size 4) is whole
    the return: dim 1 of %0 is split by "x", dim 1 of result 0 is not: the annotation of result 0 (model.py:1) closes it
