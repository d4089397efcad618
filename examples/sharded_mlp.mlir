// A perceptron of two layers on 8 devices: the batch is split over "data", the weights over "model".
// `weft why` and `weft show` explain what becomes of the rest.
sdy.mesh @mesh = <["data"=2, "model"=4]>

func.func @main(
    %x: tensor<16x64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>} loc("x"),
    %w0: tensor<64x256xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"model"}]>} loc("params['w0']"),
    %w1: tensor<256x64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"model"}, {}]>} loc("params['w1']"),
    %w2: tensor<64x10xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"model"}]>} loc("params['w2']"))
    -> tensor<16x10xf32> {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = stablehlo.dot_general %x, %w0, contracting_dims = [1] x [0]
      : (tensor<16x64xf32>, tensor<64x256xf32>) -> tensor<16x256xf32> loc(#up)
  %1 = stablehlo.broadcast_in_dim %zero, dims = [] : (tensor<f32>) -> tensor<16x256xf32> loc(#relu)
  %2 = stablehlo.maximum %0, %1 : tensor<16x256xf32> loc(#relu)
  %3 = stablehlo.dot_general %2, %w1, contracting_dims = [1] x [0]
      : (tensor<16x256xf32>, tensor<256x64xf32>) -> tensor<16x64xf32> loc(#down)
  %4 = stablehlo.add %x, %3 : tensor<16x64xf32> loc(#add)
  %5 = stablehlo.dot_general %4, %w2, contracting_dims = [1] x [0]
      : (tensor<16x64xf32>, tensor<64x10xf32>) -> tensor<16x10xf32> loc(#logits)
  return %5 : tensor<16x10xf32>
}
#up = loc("jit(forward)/block/dot_general"("mlp.py":4:9))
#relu = loc("jit(forward)/block/max"("mlp.py":4:9))
#down = loc("jit(forward)/block/dot_general"("mlp.py":5:13))
#add = loc("jit(forward)/block/add"("mlp.py":5:9))
#logits = loc("jit(forward)/head/dot_general"("mlp.py":6:12))
