// Inside a manual computation the manual axes are not seen.
sdy.mesh @mesh = <["x"=2, "y"=4]>
func.func @main(%a: tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{?}, {"y", ?}]>}) -> tensor<8x16xf32> {
  %0 = stablehlo.negate %a : tensor<8x16xf32> loc("model.py":2:7)
  %1 = sdy.manual_computation(%0)
      in_shardings=[<@mesh, [{"x"}, {?}]>] out_shardings=[<@mesh, [{"x"}, {?}]>] manual_axes={"x"}
      (%z: tensor<4x16xf32>) {
    %2 = stablehlo.negate %z : tensor<4x16xf32> loc("model.py":4:9)
    sdy.return %2 : tensor<4x16xf32>
  } : (tensor<8x16xf32>) -> tensor<8x16xf32> loc("model.py":3:7)
  return %1 : tensor<8x16xf32>
}
// ----- notes
none
// ----- %0
%0: negate, tensor<8x16xf32>, <@mesh, [{"x"}, {"y"}]>
  --> model.py:2
  dim 0 (size 8) is split by "x"
    the manual computation (model.py:3) puts "x" on dim 0 of %0
  dim 1 (size 16) is split by "y"
    the annotation of the argument (-:3) puts "y" on dim 1 of %arg0
    negate (model.py:2) carries it from dim 1 of %arg0 to dim 1 of %0
// ----- %2
%2: negate, tensor<4x16xf32>, <@mesh, [{}, {"y"}]>
  --> model.py:4
  dim 0 (size 4) is whole
    nothing reached it
  dim 1 (size 16) is split by "y"
    the annotation of the argument (-:3) puts "y" on dim 1 of %arg0
    negate (model.py:2) carries it from dim 1 of %arg0 to dim 1 of %0
    manual_computation (model.py:3) carries it from dim 1 of %0 to dim 1 of %arg1
    negate (model.py:4) carries it from dim 1 of %arg1 to dim 1 of %2
// ----- %1
%1: manual_computation, tensor<8x16xf32>, <@mesh, [{"x"}, {"y"}]>
  --> model.py:3
  dim 0 (size 8) is split by "x"
    the manual computation (model.py:3) puts "x" on dim 0 of %1
  dim 1 (size 16) is split by "y"
    the annotation of the argument (-:3) puts "y" on dim 1 of %arg0
    negate (model.py:2) carries it from dim 1 of %arg0 to dim 1 of %0
    manual_computation (model.py:3) carries it from dim 1 of %0 to dim 1 of %arg1
    negate (model.py:4) carries it from dim 1 of %arg1 to dim 1 of %2
    manual_computation (model.py:3) carries it from dim 1 of %2 to dim 1 of %1
