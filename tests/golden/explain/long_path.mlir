// A long way is told without its middle.
sdy.mesh @mesh = <["x"=2, "y"=4]>
func.func @main(%x: tensor<8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>}) -> tensor<8xf32> {
  %0 = stablehlo.negate %x : tensor<8xf32> loc("model.py":2:3)
  %1 = stablehlo.negate %0 : tensor<8xf32> loc("model.py":3:3)
  %2 = stablehlo.negate %1 : tensor<8xf32> loc("model.py":4:3)
  %3 = stablehlo.negate %2 : tensor<8xf32> loc("model.py":5:3)
  %4 = stablehlo.negate %3 : tensor<8xf32> loc("model.py":6:3)
  %5 = stablehlo.negate %4 : tensor<8xf32> loc("model.py":7:3)
  %6 = stablehlo.negate %5 : tensor<8xf32> loc("model.py":8:3)
  %7 = stablehlo.negate %6 : tensor<8xf32> loc("model.py":9:3)
  %8 = stablehlo.negate %7 : tensor<8xf32> loc("model.py":10:3)
  %9 = stablehlo.negate %8 : tensor<8xf32> loc("model.py":11:3)
  %10 = stablehlo.negate %9 : tensor<8xf32> loc("model.py":12:3)
  %11 = stablehlo.negate %10 : tensor<8xf32> loc("model.py":13:3)
  return %11 : tensor<8xf32>
} loc("model.py":1:1)
// ----- %11
%11: negate, tensor<8xf32>, <@mesh, [{"x"}]>
  --> model.py:13
  dim 0 (size 8) is split by "x"
    the annotation of the argument (-:3) puts "x" on dim 0 of %arg0
    negate (model.py:2) carries it from dim 0 of %arg0 to dim 0 of %0
    negate (model.py:3) carries it from dim 0 of %0 to dim 0 of %1
    ... 6 more steps ...
    negate (model.py:10) carries it from dim 0 of %7 to dim 0 of %8
    negate (model.py:11) carries it from dim 0 of %8 to dim 0 of %9
    negate (model.py:12) carries it from dim 0 of %9 to dim 0 of %10
    negate (model.py:13) carries it from dim 0 of %10 to dim 0 of %11
