// What has a lower priority comes later, and finds its axis taken.
sdy.mesh @mesh = <["x"=2, "y"=4]>
func.func @main(
    %a: tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}p1, {"y"}p1]>},
    %b: tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{?}, {"x", ?}]>}) -> tensor<8x16xf32> {
  %0 = stablehlo.negate %a : tensor<8x16xf32> loc("model.py":2:7)
  %1 = stablehlo.add %0, %b : tensor<8x16xf32> loc("model.py":3:7)
  return %1 : tensor<8x16xf32>
}
// ----- notes
conflict: negate: dim 0 of %arg0 is split by "x", dim 0 of %0 is not: "x" splits dim 1 of it already
  --> model.py:2
conflict: negate: dim 1 of %arg0 is split by "y", dim 1 of %0 by "x"
  --> model.py:2
// ----- %arg0
%arg0: argument, tensor<8x16xf32>, <@mesh, [{"x"}, {"y"}]>
  --> -:4
  dim 0 (size 8) is split by "x"
    the annotation of the argument (-:4) puts "x" on dim 0 of %arg0, priority 1
  dim 1 (size 16) is split by "y"
    the annotation of the argument (-:4) puts "y" on dim 1 of %arg0, priority 1
// ----- %0
%0: negate, tensor<8x16xf32>, <@mesh, [{}, {"x"}]>
  --> model.py:2
  dim 0 (size 8) is whole
    negate: dim 0 of %arg0 is split by "x", dim 0 of %0 is not: "x" splits dim 1 of it already
  dim 1 (size 16) is split by "x"
    the annotation of the argument (-:5) puts "x" on dim 1 of %arg1
    add (model.py:3) carries it from dim 1 of %arg1 to dim 1 of %0
    negate: dim 1 of %arg0 is split by "y", dim 1 of %0 by "x"
// ----- %1
%1: add, tensor<8x16xf32>, <@mesh, [{}, {"x"}]>
  --> model.py:3
  dim 0 (size 8) is whole
    nothing reached it
  dim 1 (size 16) is split by "x"
    the annotation of the argument (-:5) puts "x" on dim 1 of %arg1
    add (model.py:3) carries it from dim 1 of %arg1 to dim 1 of %1
