module {
  sdy.mesh @mesh = <["x"=2, "y"=4]>
  func.func @main() -> (tensor<4x4xf32>, tensor<i32>, tensor<4x4xf32>, tensor<2xui64>, tensor<4xui32>) {
    %0 = stablehlo.constant dense<1.000000e+00> : tensor<4x4xf32>
    %1 = stablehlo.constant dense<[1, 2]> : tensor<2xui64>
    %2 = "stablehlo.all_reduce"(%0) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "y">]>, use_global_device_ids}> ({
    ^bb0(%arg0: tensor<f32>, %arg1: tensor<f32>):
      %3 = stablehlo.add %arg0, %arg1 : tensor<f32>
      stablehlo.return %3 : tensor<f32>
    }) : (tensor<4x4xf32>) -> tensor<4x4xf32>
    %4 = "stablehlo.composite"() <{composite_attributes = {axes = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "y">]>}, decomposition = @weft.axis_index.0, name = "weft.axis_index"}> : () -> tensor<i32>
    %5 = stablehlo.constant dense<1> : tensor<i32>
    %6 = stablehlo.add %4, %5 : tensor<i32>
    %7 = "stablehlo.optimization_barrier"(%0) : (tensor<4x4xf32>) -> tensor<4x4xf32>
    %8:2 = stablehlo.rng_bit_generator %1, algorithm = PHILOX : (tensor<2xui64>) -> (tensor<2xui64>, tensor<4xui32>)
    return %2, %6, %7, %8#0, %8#1 : tensor<4x4xf32>, tensor<i32>, tensor<4x4xf32>, tensor<2xui64>, tensor<4xui32>
  }
  func.func private @weft.axis_index.0() -> tensor<i32> {
    %0 = stablehlo.partition_id : tensor<ui32>
    %1 = stablehlo.convert %0 : (tensor<ui32>) -> tensor<i32>
    %2 = stablehlo.constant dense<4> : tensor<i32>
    %3 = stablehlo.remainder %1, %2 : tensor<i32>
    return %3 : tensor<i32>
  }
}
// becomes
module {
  sdy.mesh @mesh = <["x"=2, "y"=4]>
  func.func @main() -> (tensor<4x4xf32>, tensor<i32>, tensor<4x4xf32>, tensor<2xui64>, tensor<4xui32>) {
    %0 = stablehlo.constant dense<1.000000e+00> : tensor<4x4xf32>
    %1 = stablehlo.constant dense<[1, 2]> : tensor<2xui64>
    %2 = "stablehlo.all_reduce"(%0) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "y">]>, use_global_device_ids}> ({
    ^bb0(%arg0: tensor<f32>, %arg1: tensor<f32>):
      %3 = stablehlo.add %arg0, %arg1 : tensor<f32>
      stablehlo.return %3 : tensor<f32>
    }) : (tensor<4x4xf32>) -> tensor<4x4xf32>
    %4 = "stablehlo.composite"() <{composite_attributes = {axes = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "y">]>}, decomposition = @weft.axis_index.0, name = "weft.axis_index"}> : () -> tensor<i32>
    %5 = stablehlo.constant dense<1> : tensor<i32>
    %6 = stablehlo.add %4, %5 : tensor<i32>
    %7 = "stablehlo.optimization_barrier"(%0) : (tensor<4x4xf32>) -> tensor<4x4xf32>
    %8:2 = stablehlo.rng_bit_generator %1, algorithm = PHILOX : (tensor<2xui64>) -> (tensor<2xui64>, tensor<4xui32>)
    return %2, %6, %7, %8#0, %8#1 : tensor<4x4xf32>, tensor<i32>, tensor<4x4xf32>, tensor<2xui64>, tensor<4xui32>
  }
  func.func private @weft.axis_index.0() -> tensor<i32> {
    %0 = stablehlo.partition_id : tensor<ui32>
    %1 = stablehlo.convert %0 : (tensor<ui32>) -> tensor<i32>
    %2 = stablehlo.constant dense<4> : tensor<i32>
    %3 = stablehlo.remainder %1, %2 : tensor<i32>
    return %3 : tensor<i32>
  }
}
