// Values of a group share their sharding; a group whose values are annotated differently does not.
sdy.mesh @mesh = <["x"=2, "y"=4]>
func.func @main(
    %a: tensor<8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>}, %b: tensor<8xf32>,
    %c: tensor<8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>},
    %d: tensor<8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"y"}]>})
    -> (tensor<8xf32>, tensor<8xf32>, tensor<8xf32>, tensor<8xf32>) {
  %0 = stablehlo.negate %a : tensor<8xf32> loc("model.py":2:7)
  sdy.sharding_group %0 group_id=0 : tensor<8xf32>
  sdy.sharding_group %b group_id=0 : tensor<8xf32>
  sdy.sharding_group %c group_id=1 : tensor<8xf32> loc("model.py":3:7)
  sdy.sharding_group %d group_id=1 : tensor<8xf32> loc("model.py":4:7)
  return %0, %b, %c, %d : tensor<8xf32>, tensor<8xf32>, tensor<8xf32>, tensor<8xf32>
}
// ----- notes
conflict: sharding group 1: its values are annotated with different shardings, so each keeps its own
  --> model.py:3
   |  and 1 more like it at this line
// ----- %arg1
%arg1: argument, tensor<8xf32>, <@mesh, [{"x"}]>
  --> -:4
  dim 0 (size 8) is split by "x"
    the annotation of the argument (-:4) puts "x" on dim 0 of %arg0
    negate (model.py:2) carries it from dim 0 of %arg0 to dim 0 of %0
    the sharding group carries it from dim 0 of %0 to dim 0 of %arg1
