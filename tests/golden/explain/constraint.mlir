// A constraint speaks for what it reads, too.
sdy.mesh @mesh = <["x"=2, "y"=4]>
func.func @main(%a: tensor<8x16xf32>) -> tensor<8x16xf32> {
  %0 = stablehlo.negate %a : tensor<8x16xf32> loc("model.py":2:7)
  %1 = sdy.sharding_constraint %0 <@mesh, [{"x"}, {}]> : tensor<8x16xf32> loc("model.py":3:7)
  %2 = stablehlo.negate %1 : tensor<8x16xf32> loc("model.py":4:7)
  return %2 : tensor<8x16xf32>
}
// ----- notes
none
// ----- %0
%0: negate, tensor<8x16xf32>, <@mesh, [{"x"}, {}]>
  --> model.py:2
  dim 0 (size 8) is split by "x"
    the sharding constraint (model.py:3) puts "x" on dim 0 of %0
  dim 1 (size 16) is whole
    the sharding constraint (model.py:3) keeps it whole
// ----- %2
%2: negate, tensor<8x16xf32>, <@mesh, [{"x"}, {}]>
  --> model.py:4
  dim 0 (size 8) is split by "x"
    the sharding constraint (model.py:3) puts "x" on dim 0 of %1
    negate (model.py:4) carries it from dim 0 of %1 to dim 0 of %2
  dim 1 (size 16) is whole
    nothing reached it
