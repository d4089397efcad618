module {
  sdy.mesh @mesh = <["x"=2, "y"=4]>
  func.func @main(%arg0: tensor<8x4xf32>, %arg1: tensor<8x4xf32>) -> tensor<8x4xf32> {
    %0 = stablehlo.constant dense<0> : tensor<i32>
    %1:3 = "stablehlo.while"(%0, %arg0, %arg1) ({
    ^bb0(%arg2: tensor<i32>, %arg3: tensor<8x4xf32>, %arg4: tensor<8x4xf32>):
      %2 = stablehlo.constant dense<4> : tensor<i32>
      %3 = stablehlo.compare LT, %arg2, %2, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %3 : tensor<i1>
    }, {
    ^bb0(%arg5: tensor<i32>, %arg6: tensor<8x4xf32>, %arg7: tensor<8x4xf32>):
      %4 = stablehlo.negate %arg6 : tensor<8x4xf32>
      %5 = stablehlo.add %arg6, %arg7 : tensor<8x4xf32>
      %6 = "stablehlo.all_reduce"(%5) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "y">]>, use_global_device_ids}> ({
      ^bb0(%arg8: tensor<f32>, %arg9: tensor<f32>):
        %7 = stablehlo.add %arg8, %arg9 : tensor<f32>
        stablehlo.return %7 : tensor<f32>
      }) : (tensor<8x4xf32>) -> tensor<8x4xf32>
      %8 = stablehlo.constant dense<1> : tensor<i32>
      %9 = stablehlo.add %arg5, %8 : tensor<i32>
      stablehlo.return %9, %4, %6 : tensor<i32>, tensor<8x4xf32>, tensor<8x4xf32>
    }) : (tensor<i32>, tensor<8x4xf32>, tensor<8x4xf32>) -> (tensor<i32>, tensor<8x4xf32>, tensor<8x4xf32>)
    return %1#1 : tensor<8x4xf32>
  }
}
// becomes
module {
  sdy.mesh @mesh = <["x"=2, "y"=4]>
  func.func @main(%arg0: tensor<8x4xf32>, %arg1: tensor<8x4xf32>) -> tensor<8x4xf32> {
    %0 = stablehlo.constant dense<0> : tensor<i32>
    %1:2 = "stablehlo.while"(%0, %arg0) ({
    ^bb0(%arg2: tensor<i32>, %arg3: tensor<8x4xf32>):
      %2 = stablehlo.constant dense<4> : tensor<i32>
      %3 = stablehlo.compare LT, %arg2, %2, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %3 : tensor<i1>
    }, {
    ^bb0(%arg4: tensor<i32>, %arg5: tensor<8x4xf32>):
      %4 = stablehlo.negate %arg5 : tensor<8x4xf32>
      %5 = stablehlo.constant dense<1> : tensor<i32>
      %6 = stablehlo.add %arg4, %5 : tensor<i32>
      stablehlo.return %6, %4 : tensor<i32>, tensor<8x4xf32>
    }) : (tensor<i32>, tensor<8x4xf32>) -> (tensor<i32>, tensor<8x4xf32>)
    return %1#1 : tensor<8x4xf32>
  }
}
