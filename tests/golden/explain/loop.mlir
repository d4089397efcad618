// What a loop carries has one sharding; constants have one for each of their readers.
sdy.mesh @mesh = <["x"=2, "y"=4]>
func.func @main(%a: tensor<8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>}, %b: tensor<8xf32>) -> (tensor<8xf32>, tensor<8xf32>) {
  %i = stablehlo.constant dense<0> : tensor<i32>
  %k = stablehlo.constant dense<2.0> : tensor<8xf32> loc("model.py":1:5)
  %0:2 = stablehlo.while(%n = %i, %x = %a) : tensor<i32>, tensor<8xf32>
    cond {
      %limit = stablehlo.constant dense<3> : tensor<i32>
      %less = stablehlo.compare LT, %n, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %less : tensor<i1>
    } do {
      %one = stablehlo.constant dense<1> : tensor<i32>
      %next = stablehlo.add %n, %one : tensor<i32>
      %y = stablehlo.multiply %x, %k : tensor<8xf32> loc("model.py":3:9)
      stablehlo.return %next, %y : tensor<i32>, tensor<8xf32>
    } loc("model.py":2:5)
  %2 = stablehlo.multiply %b, %k : tensor<8xf32> loc("model.py":4:9)
  return %0#1, %2 : tensor<8xf32>, tensor<8xf32>
}
// ----- %2#1
%2#1: while, tensor<8xf32>, <@mesh, [{"x"}]>
  --> model.py:2
  dim 0 (size 8) is split by "x"
    the annotation of the argument (-:3) puts "x" on dim 0 of %arg0
    while (model.py:2) carries it from dim 0 of %arg0 to dim 0 of %2#1
// ----- %7
%7: multiply, tensor<8xf32>, <@mesh, [{"x"}]>
  --> model.py:3
  dim 0 (size 8) is split by "x"
    the annotation of the argument (-:3) puts "x" on dim 0 of %arg0
    while (model.py:2) carries it from dim 0 of %arg0 to dim 0 of %7
// ----- %1
%1: constant, tensor<8xf32>, <@mesh, [{"x"}]>
  --> model.py:1
  dim 0 (size 8) is split by "x"
    the annotation of the argument (-:3) puts "x" on dim 0 of %arg0
    while (model.py:2) carries it from dim 0 of %arg0 to dim 0 of %2#1
    multiply (model.py:3) carries it from dim 0 of %2#1 to dim 0 of %1
%1: constant, tensor<8xf32>, replicated
  --> model.py:1
  dim 0 (size 8) is whole
    nothing reached it
