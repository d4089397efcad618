// A sort needs the dim it sorts along whole.
sdy.mesh @mesh = <["x"=2, "y"=4]>
func.func @main(%a: tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {"y"}]>}) -> tensor<8x16xf32> {
  %0 = "stablehlo.sort"(%a) ({
  ^bb0(%p: tensor<f32>, %q: tensor<f32>):
    %c = stablehlo.compare LT, %p, %q : (tensor<f32>, tensor<f32>) -> tensor<i1>
    stablehlo.return %c : tensor<i1>
  }) {dimension = 1 : i64} : (tensor<8x16xf32>) -> tensor<8x16xf32> loc("model.py":2:7)
  return %0 : tensor<8x16xf32>
}
// ----- notes
forced replication: sort needs dim 1 of %arg0 whole, but "y" splits it: it is gathered first
  --> model.py:2
   |  and 1 more like it at this line
// ----- %0
%0: sort, tensor<8x16xf32>, <@mesh, [{"x"}, {"y"}]>
  --> model.py:2
  dim 0 (size 8) is split by "x"
    the annotation of the argument (-:3) puts "x" on dim 0 of %arg0
    sort (model.py:2) carries it from dim 0 of %arg0 to dim 0 of %0
  dim 1 (size 16) is split by "y"
    the annotation of the argument (-:3) puts "y" on dim 1 of %arg0
    sort (model.py:2) carries it from dim 1 of %arg0 to dim 1 of %0
    sort needs dim 1 of %0 whole, but "y" splits it: it is computed whole, then split
