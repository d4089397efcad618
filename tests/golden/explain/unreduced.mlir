// A value that is unreduced along an axis is not split by it.
sdy.mesh @mesh = <["x"=2, "y"=4]>
func.func @main(
    %a: tensor<8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x", ?}]>},
    %b: tensor<8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{?}], unreduced={"x"}>}) -> tensor<8xf32> {
  %0 = stablehlo.add %a, %b : tensor<8xf32> loc("model.py":2:7)
  return %0 : tensor<8xf32>
}
// ----- notes
conflict: add: dim 0 of %arg0 is split by "x", dim 0 of %arg1 is not: it is unreduced along "x"
  --> model.py:2
// ----- %arg1
%arg1: argument, tensor<8xf32>, <@mesh, [{}], unreduced={"x"}>
  --> -:5
  dim 0 (size 8) is whole
    add: dim 0 of %arg0 is split by "x", dim 0 of %arg1 is not: it is unreduced along "x"
