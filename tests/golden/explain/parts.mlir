// A reshape splits an axis into parts.
sdy.mesh @mesh = <["x"=2, "y"=4]>
func.func @main(%a: tensor<8x3xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"y"}, {}]>}) -> tensor<2x4x3xf32> {
  %0 = stablehlo.reshape %a : (tensor<8x3xf32>) -> tensor<2x4x3xf32> loc("model.py":2:7)
  return %0 : tensor<2x4x3xf32>
} loc("model.py":1:1)
// ----- notes
none
// ----- %0
%0: reshape, tensor<2x4x3xf32>, <@mesh, [{"y":(1)2}, {"y":(2)2}, {}]>
  --> model.py:2
  dim 0 (size 2) is split by "y":(1)2
    the annotation of the argument (-:3) puts "y":(1)2 on dim 0 of %arg0
    reshape (model.py:2) carries it from dim 0 of %arg0 to dim 0 of %0
  dim 1 (size 4) is split by "y":(2)2
    the annotation of the argument (-:3) puts "y":(2)2 on dim 0 of %arg0
    reshape (model.py:2) carries it from dim 0 of %arg0 to dim 1 of %0
  dim 2 (size 3) is whole
    nothing reached it
// ----- result0
result 0: declared result, tensor<2x4x3xf32>, <@mesh, [{}, {}, {}]>
  --> model.py:1
  dim 0 (size 2) is whole
    the annotation of the argument (-:3) puts "y":(1)2 on dim 0 of %arg0
    reshape (model.py:2) carries it from dim 0 of %arg0 to dim 0 of %0
    the return carries it from dim 0 of %0 to dim 0 of result 0
    arguments and results are not split by parts of axes: some are left out
  dim 1 (size 4) is whole
    the annotation of the argument (-:3) puts "y":(2)2 on dim 0 of %arg0
    reshape (model.py:2) carries it from dim 0 of %arg0 to dim 1 of %0
    the return carries it from dim 1 of %0 to dim 1 of result 0
    arguments and results are not split by parts of axes: some are left out
  dim 2 (size 3) is whole
    nothing reached it
