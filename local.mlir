module @all_reduce attributes {mhlo.num_partitions = 4 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main() -> (tensor<2x2xi32>, tensor<2x2xi32>) {
    %0 = stablehlo.partition_id : tensor<ui32>
    %1 = stablehlo.convert %0 : (tensor<ui32>) -> tensor<i32>
    %2 = stablehlo.constant dense<2> : tensor<i32>
    %3 = stablehlo.multiply %1, %2 : tensor<i32>
    %4 = stablehlo.broadcast_in_dim %3, dims = [] : (tensor<i32>) -> tensor<2x2xi32>
    %5 = stablehlo.iota dim = 0 : tensor<2x2xi32>
    %6 = stablehlo.iota dim = 1 : tensor<2x2xi32>
    %7 = stablehlo.add %4, %6 : tensor<2x2xi32>
    %8 = stablehlo.add %4, %5 : tensor<2x2xi32>
    %9 = stablehlo.add %8, %6 : tensor<2x2xi32>
    %10 = stablehlo.dot_general %7, %9, contracting_dims = [1] x [0] : (tensor<2x2xi32>, tensor<2x2xi32>) -> tensor<2x2xi32>
    %11 = "stablehlo.async_start"(%10) ({
    ^bb0(%arg0: tensor<2x2xi32>):
      %12 = "stablehlo.all_reduce"(%arg0) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>, use_global_device_ids}> ({
      ^bb0(%arg1: tensor<i32>, %arg2: tensor<i32>):
        %13 = stablehlo.add %arg1, %arg2 : tensor<i32>
        stablehlo.return %13 : tensor<i32>
      }) : (tensor<2x2xi32>) -> tensor<2x2xi32>
      stablehlo.return %12 : tensor<2x2xi32>
    }) {weft.stream = "communication.0"} : (tensor<2x2xi32>) -> !stablehlo.future<tensor<2x2xi32>>
    %14 = stablehlo.constant dense<[[140, 168], [140, 168]]> : tensor<2x2xi32>
    %15 = "stablehlo.async_done"(%11) : (!stablehlo.future<tensor<2x2xi32>>) -> tensor<2x2xi32>
    "stablehlo.custom_call"(%15, %14) <{call_target_name = "check.expect_eq", has_side_effect = true}> : (tensor<2x2xi32>, tensor<2x2xi32>) -> ()
    return %10, %15 : tensor<2x2xi32>, tensor<2x2xi32>
  }
}
