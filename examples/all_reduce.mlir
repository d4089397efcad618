// A product split over 4 devices: each holds two columns of x and two rows of w, multiplies them,
// and an all-reduce adds the four partial products. Run with `weft eval --devices 4`.
module @all_reduce attributes {mhlo.num_partitions = 4 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main() -> (tensor<2x2xi32>, tensor<2x2xi32>) {
    // x[i, k] = k and w[k, j] = k + j, where device d holds k = 2d and 2d + 1.
    %device = stablehlo.partition_id : tensor<ui32>
    %0 = stablehlo.convert %device : (tensor<ui32>) -> tensor<i32>
    %two = stablehlo.constant dense<2> : tensor<i32>
    %1 = stablehlo.multiply %0, %two : tensor<i32>
    %first = stablehlo.broadcast_in_dim %1, dims = [] : (tensor<i32>) -> tensor<2x2xi32>
    %row = stablehlo.iota dim = 0 : tensor<2x2xi32>
    %column = stablehlo.iota dim = 1 : tensor<2x2xi32>
    %x = stablehlo.add %first, %column : tensor<2x2xi32>
    %k = stablehlo.add %first, %row : tensor<2x2xi32>
    %w = stablehlo.add %k, %column : tensor<2x2xi32>

    %partial = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<2x2xi32>, tensor<2x2xi32>) -> tensor<2x2xi32>
    %total = "stablehlo.all_reduce"(%partial) <{
      replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>,
      channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, use_global_device_ids
    }> ({
    ^bb0(%a: tensor<i32>, %b: tensor<i32>):
      %sum = stablehlo.add %a, %b : tensor<i32>
      stablehlo.return %sum : tensor<i32>
    }) : (tensor<2x2xi32>) -> tensor<2x2xi32>

    // The sums of k * k and of k * (k + 1) for k = 0..7, on every device.
    %expected = stablehlo.constant dense<[[140, 168], [140, 168]]> : tensor<2x2xi32>
    stablehlo.custom_call @check.expect_eq(%total, %expected) {has_side_effect = true} : (tensor<2x2xi32>, tensor<2x2xi32>) -> ()
    return %partial, %total : tensor<2x2xi32>, tensor<2x2xi32>
  }
}
