// The minor part of a dim cannot be split before its major part is.
sdy.mesh @mesh = <["x"=2, "y"=4]>
func.func @main(%a: tensor<4x6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>}) -> tensor<24xf32> {
  %0 = stablehlo.reshape %a : (tensor<4x6xf32>) -> tensor<24xf32> loc("model.py":2:7)
  return %0 : tensor<24xf32>
}
// ----- notes
conflict: reshape: dim 1 of %arg0 is split by "x", dim 0 of %0 is not: its pieces would not be contiguous
  --> model.py:2
// ----- %0
%0: reshape, tensor<24xf32>, replicated
  --> model.py:2
  dim 0 (size 24) is whole
    reshape: dim 1 of %arg0 is split by "x", dim 0 of %0 is not: its pieces would not be contiguous
