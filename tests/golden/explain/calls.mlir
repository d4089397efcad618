// A function that is called twice has a story for each way it is split.
sdy.mesh @mesh = <["x"=2, "y"=4]>
func.func @main(
    %a: tensor<8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>}, %b: tensor<8xf32>)
    -> (tensor<8xf32>, tensor<8xf32>, tensor<8xf32>) {
  %0 = call @twice(%a) : (tensor<8xf32>) -> tensor<8xf32> loc("model.py":5:7)
  %1 = call @twice(%b) : (tensor<8xf32>) -> tensor<8xf32> loc("model.py":6:7)
  %2 = call @twice(%0) : (tensor<8xf32>) -> tensor<8xf32> loc("model.py":7:7)
  return %0, %1, %2 : tensor<8xf32>, tensor<8xf32>, tensor<8xf32>
}
func.func private @twice(%x: tensor<8xf32>) -> tensor<8xf32> {
  %0 = stablehlo.add %x, %x : tensor<8xf32> loc("model.py":2:10)
  return %0 : tensor<8xf32>
}
// ----- %2
%2: call of @twice, tensor<8xf32>, <@mesh, [{"x"}]>
  --> model.py:7
  dim 0 (size 8) is split by "x"
    the annotation of the argument (-:4) puts "x" on dim 0 of %arg0
    call of @twice (model.py:5) carries it from dim 0 of %arg0 to dim 0 of %arg0 of @twice
    add (model.py:2) carries it from dim 0 of %arg0 of @twice to dim 0 of %0 of @twice
    call of @twice (model.py:5) carries it from dim 0 of %0 of @twice to dim 0 of %0
    call of @twice (model.py:7) carries it from dim 0 of %0 to dim 0 of %arg0 of @twice
    add (model.py:2) carries it from dim 0 of %arg0 of @twice to dim 0 of %0 of @twice
    call of @twice (model.py:7) carries it from dim 0 of %0 of @twice to dim 0 of %2
// ----- model.py:2
%0 of @twice: add, tensor<8xf32>, <@mesh, [{"x"}]>
  --> model.py:2
  called at model.py:5
  and 1 more like it, for other readers or calls
  dim 0 (size 8) is split by "x"
    the annotation of the argument (-:4) puts "x" on dim 0 of %arg0
    call of @twice (model.py:5) carries it from dim 0 of %arg0 to dim 0 of %arg0 of @twice
    add (model.py:2) carries it from dim 0 of %arg0 of @twice to dim 0 of %0 of @twice
%0 of @twice: add, tensor<8xf32>, replicated
  --> model.py:2
  called at model.py:6
  dim 0 (size 8) is whole
    nothing reached it
