// A perceptron of two layers with a softmax: 4 samples of 8 features, 16 hidden units, 3 classes.
module @mlp {
  func.func public @main() -> tensor<4x3xf32> {
    // Numbers that look random but are the same everywhere.
    %i0 = stablehlo.iota dim = 0 : tensor<32xf32>
    %s0 = stablehlo.sine %i0 : tensor<32xf32>
    %x = stablehlo.reshape %s0 : (tensor<32xf32>) -> tensor<4x8xf32>
    %i1 = stablehlo.iota dim = 0 : tensor<128xf32>
    %s1 = stablehlo.cosine %i1 : tensor<128xf32>
    %w1 = stablehlo.reshape %s1 : (tensor<128xf32>) -> tensor<8x16xf32>
    %b1 = stablehlo.constant dense<0.5> : tensor<16xf32>
    %i2 = stablehlo.iota dim = 0 : tensor<48xf32>
    %s2 = stablehlo.sine %i2 : tensor<48xf32>
    %w2 = stablehlo.reshape %s2 : (tensor<48xf32>) -> tensor<16x3xf32>
    %y = call @forward(%x, %w1, %b1, %w2) : (tensor<4x8xf32>, tensor<8x16xf32>, tensor<16xf32>, tensor<16x3xf32>) -> tensor<4x3xf32>

    // The probabilities of each sample add up to one.
    %zero = stablehlo.constant dense<0.0> : tensor<f32>
    %sums = stablehlo.reduce(%y init: %zero) applies stablehlo.add across dimensions = [1] : (tensor<4x3xf32>, tensor<f32>) -> tensor<4xf32>
    %ones = stablehlo.constant dense<1.0> : tensor<4xf32>
    stablehlo.custom_call @check.expect_almost_eq(%sums, %ones) {has_side_effect = true} : (tensor<4xf32>, tensor<4xf32>) -> ()
    return %y : tensor<4x3xf32>
  }

  func.func public @forward(%x: tensor<4x8xf32>, %w1: tensor<8x16xf32>, %b1: tensor<16xf32>, %w2: tensor<16x3xf32>) -> tensor<4x3xf32> {
    %0 = stablehlo.dot_general %x, %w1, contracting_dims = [1] x [0] : (tensor<4x8xf32>, tensor<8x16xf32>) -> tensor<4x16xf32>
    %1 = stablehlo.broadcast_in_dim %b1, dims = [1] : (tensor<16xf32>) -> tensor<4x16xf32>
    %2 = stablehlo.add %0, %1 : tensor<4x16xf32>
    %hidden = stablehlo.tanh %2 : tensor<4x16xf32>
    %logits = stablehlo.dot_general %hidden, %w2, contracting_dims = [1] x [0] : (tensor<4x16xf32>, tensor<16x3xf32>) -> tensor<4x3xf32>
    %p = call @softmax(%logits) : (tensor<4x3xf32>) -> tensor<4x3xf32>
    return %p : tensor<4x3xf32>
  }

  func.func private @softmax(%logits: tensor<4x3xf32>) -> tensor<4x3xf32> {
    %low = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %zero = stablehlo.constant dense<0.0> : tensor<f32>
    %0 = stablehlo.reduce(%logits init: %low) applies stablehlo.maximum across dimensions = [1] : (tensor<4x3xf32>, tensor<f32>) -> tensor<4xf32>
    %1 = stablehlo.broadcast_in_dim %0, dims = [0] : (tensor<4xf32>) -> tensor<4x3xf32>
    %2 = stablehlo.subtract %logits, %1 : tensor<4x3xf32>
    %3 = stablehlo.exponential %2 : tensor<4x3xf32>
    %4 = stablehlo.reduce(%3 init: %zero) applies stablehlo.add across dimensions = [1] : (tensor<4x3xf32>, tensor<f32>) -> tensor<4xf32>
    %5 = stablehlo.broadcast_in_dim %4, dims = [0] : (tensor<4xf32>) -> tensor<4x3xf32>
    %6 = stablehlo.divide %3, %5 : tensor<4x3xf32>
    return %6 : tensor<4x3xf32>
  }
}
