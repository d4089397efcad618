// Sizes that do not divide: at the border of the program, within it, and in a reshape.
sdy.mesh @mesh = <["x"=2, "y"=4]>
func.func @main(
    %a: tensor<10xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"y"}]>} loc("a"("model.py":1:9)),
    %b: tensor<3x5xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x", ?}, {?}]>}) -> tensor<10xf32> {
  %0 = stablehlo.negate %a : tensor<10xf32> loc("model.py":2:7)
  %1 = stablehlo.reshape %b : (tensor<3x5xf32>) -> tensor<15xf32> loc("model.py":3:7)
  %2 = stablehlo.custom_call @keep(%1) {has_side_effect = true} : (tensor<15xf32>) -> tensor<15xf32>
  return %0 : tensor<10xf32>
} loc("model.py":1:1)
// ----- notes
size does not divide: reshape: dim 0 of %arg1 is split by "x", dim 0 of %1 is not: "x" makes 2 pieces, which do not divide 3
  --> model.py:3
size does not divide: dim 0 of %arg0 (a): "y" makes 4 pieces, which do not divide 10: arguments and results are split evenly only
  --> model.py:1
   |  and 1 more like it at this line
size does not divide: dim 0 of %arg1: "x" makes 2 pieces, which do not divide 3: arguments and results are split evenly only
  --> -:5
size does not divide: dim 0 of %0 has size 10 and is split by "y" into 4 pieces of 3: the last are padded
  --> model.py:2
// ----- %arg0
%arg0 (a): argument, tensor<10xf32>, <@mesh, [{"y":(1)2}]>
  --> model.py:1
  dim 0 (size 10) is split by "y":(1)2
    the annotation of the argument (model.py:1) puts "y" on dim 0 of %arg0 (a)
    "y" makes 4 pieces, which do not divide 10: arguments and results are split evenly only
// ----- %1
%1: reshape, tensor<15xf32>, replicated
  --> model.py:3
  dim 0 (size 15) is whole
    reshape: dim 0 of %arg1 is split by "x", dim 0 of %1 is not: "x" makes 2 pieces, which do not divide 3
// ----- result0
result 0: declared result, tensor<10xf32>, <@mesh, [{}]>
  --> model.py:1
  dim 0 (size 10) is whole
    the annotation of the argument (model.py:1) puts "y" on dim 0 of %arg0 (a)
    negate (model.py:2) carries it from dim 0 of %arg0 (a) to dim 0 of %0
    the return carries it from dim 0 of %0 to dim 0 of result 0
    "y" makes 4 pieces, which do not divide 10: arguments and results are split evenly only
