module {
  sdy.mesh @mesh = <["x"=2, "y"=4]>
  func.func @main(%arg0: tensor<8x4xf32>, %arg1: tensor<128x4xf32>) -> tensor<8x4xf32> {
    %0 = stablehlo.constant dense<0> : tensor<i32>
    %1:3 = "stablehlo.while"(%0, %arg0, %arg1) ({
    ^bb0(%arg2: tensor<i32>, %arg3: tensor<8x4xf32>, %arg4: tensor<128x4xf32>):
      %2 = stablehlo.constant dense<4> : tensor<i32>
      %3 = stablehlo.compare LT, %arg2, %2, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %3 : tensor<i1>
    }, {
    ^bb0(%arg5: tensor<i32>, %arg6: tensor<8x4xf32>, %arg7: tensor<128x4xf32>):
      %4 = "stablehlo.all_gather"(%arg7) <{all_gather_dim = 0 : i64, channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "y">]>, use_global_device_ids}> : (tensor<128x4xf32>) -> tensor<512x4xf32>
      %5 = stablehlo.slice %4 [0:8, 0:4] : (tensor<512x4xf32>) -> tensor<8x4xf32>
      %6 = stablehlo.add %arg6, %5 : tensor<8x4xf32>
      %7 = stablehlo.constant dense<1> : tensor<i32>
      %8 = stablehlo.add %arg5, %7 : tensor<i32>
      stablehlo.return %8, %6, %arg7 : tensor<i32>, tensor<8x4xf32>, tensor<128x4xf32>
    }) : (tensor<i32>, tensor<8x4xf32>, tensor<128x4xf32>) -> (tensor<i32>, tensor<8x4xf32>, tensor<128x4xf32>)
    return %1#1 : tensor<8x4xf32>
  }
}
// becomes
module {
  sdy.mesh @mesh = <["x"=2, "y"=4]>
  func.func @main(%arg0: tensor<8x4xf32>, %arg1: tensor<128x4xf32>) -> tensor<8x4xf32> {
    %0 = stablehlo.constant dense<0> : tensor<i32>
    %1 = "stablehlo.all_gather"(%arg1) <{all_gather_dim = 0 : i64, channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "y">]>, use_global_device_ids}> : (tensor<128x4xf32>) -> tensor<512x4xf32>
    %2 = stablehlo.slice %1 [0:8, 0:4] : (tensor<512x4xf32>) -> tensor<8x4xf32>
    %3:2 = "stablehlo.while"(%0, %arg0) ({
    ^bb0(%arg2: tensor<i32>, %arg3: tensor<8x4xf32>):
      %4 = stablehlo.constant dense<4> : tensor<i32>
      %5 = stablehlo.compare LT, %arg2, %4, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %5 : tensor<i1>
    }, {
    ^bb0(%arg4: tensor<i32>, %arg5: tensor<8x4xf32>):
      %6 = stablehlo.add %arg5, %2 : tensor<8x4xf32>
      %7 = stablehlo.constant dense<1> : tensor<i32>
      %8 = stablehlo.add %arg4, %7 : tensor<i32>
      stablehlo.return %8, %6 : tensor<i32>, tensor<8x4xf32>
    }) : (tensor<i32>, tensor<8x4xf32>) -> (tensor<i32>, tensor<8x4xf32>)
    return %3#1 : tensor<8x4xf32>
  }
}
