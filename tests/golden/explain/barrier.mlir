// A barrier lets nothing pass forward, a rule in the file nothing at all.
sdy.mesh @mesh = <["x"=2, "y"=4]>
func.func @main(%a: tensor<8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>}) -> (tensor<8xf32>, tensor<8xf32>) {
  %0 = sdy.propagation_barrier %a allowed_direction=BACKWARD : tensor<8xf32> loc("model.py":2:7)
  %1 = stablehlo.negate %0 : tensor<8xf32> loc("model.py":3:7)
  %2 = stablehlo.custom_call @opaque(%a) {sdy.sharding_rule =
      #sdy.op_sharding_rule<([i])->([i]) {i=8} blocked_propagation={i}>}
      : (tensor<8xf32>) -> tensor<8xf32> loc("model.py":4:7)
  return %1, %2 : tensor<8xf32>, tensor<8xf32>
}
// ----- notes
conflict: propagation_barrier: dim 0 of %arg0 is split by "x", dim 0 of %0 is not: a propagation barrier stands between
  --> model.py:2
conflict: custom_call @opaque: dim 0 of %arg0 is split by "x", dim 0 of %2 is not: custom_call @opaque passes no sharding along it
  --> model.py:4
// ----- %0
%0: propagation_barrier, tensor<8xf32>, replicated
  --> model.py:2
  dim 0 (size 8) is whole
    propagation_barrier: dim 0 of %arg0 is split by "x", dim 0 of %0 is not: a propagation barrier stands between
// ----- %1
%1: negate, tensor<8xf32>, replicated
  --> model.py:3
  dim 0 (size 8) is whole
    nothing reached it
// ----- %2
%2: custom_call @opaque, tensor<8xf32>, replicated
  --> model.py:4
  dim 0 (size 8) is whole
    custom_call @opaque: dim 0 of %arg0 is split by "x", dim 0 of %2 is not: custom_call @opaque passes no sharding along it
