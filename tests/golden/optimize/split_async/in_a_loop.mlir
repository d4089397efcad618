module {
  sdy.mesh @mesh = <["x"=2]>
  func.func @main(%arg0: tensor<8xf32>) -> tensor<8xf32> {
    %0 = stablehlo.constant dense<0> : tensor<i32>
    %1:2 = "stablehlo.while"(%0, %arg0) ({
    ^bb0(%arg1: tensor<i32>, %arg2: tensor<8xf32>):
      %2 = stablehlo.constant dense<3> : tensor<i32>
      %3 = stablehlo.compare LT, %arg1, %2 : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %3 : tensor<i1>
    }, {
    ^bb0(%arg3: tensor<i32>, %arg4: tensor<8xf32>):
      %4 = stablehlo.constant dense<1> : tensor<i32>
      %5 = stablehlo.add %arg3, %4 : tensor<i32>
      %6 = "stablehlo.all_reduce"(%arg4) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "x">]>, use_global_device_ids}> ({
      ^bb0(%arg5: tensor<f32>, %arg6: tensor<f32>):
        %7 = stablehlo.add %arg5, %arg6 : tensor<f32>
        stablehlo.return %7 : tensor<f32>
      }) : (tensor<8xf32>) -> tensor<8xf32>
      stablehlo.return %5, %6 : tensor<i32>, tensor<8xf32>
    }) : (tensor<i32>, tensor<8xf32>) -> (tensor<i32>, tensor<8xf32>)
    return %1#1 : tensor<8xf32>
  }
}
// becomes
module {
  sdy.mesh @mesh = <["x"=2]>
  func.func @main(%arg0: tensor<8xf32>) -> tensor<8xf32> {
    %0 = stablehlo.constant dense<0> : tensor<i32>
    %1:2 = "stablehlo.while"(%0, %arg0) ({
    ^bb0(%arg1: tensor<i32>, %arg2: tensor<8xf32>):
      %2 = stablehlo.constant dense<3> : tensor<i32>
      %3 = stablehlo.compare LT, %arg1, %2 : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %3 : tensor<i1>
    }, {
    ^bb0(%arg3: tensor<i32>, %arg4: tensor<8xf32>):
      %4 = stablehlo.constant dense<1> : tensor<i32>
      %5 = stablehlo.add %arg3, %4 : tensor<i32>
      %6 = "stablehlo.async_start"(%arg4) ({
      ^bb0(%arg5: tensor<8xf32>):
        %7 = "stablehlo.all_reduce"(%arg5) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "x">]>, use_global_device_ids}> ({
        ^bb0(%arg6: tensor<f32>, %arg7: tensor<f32>):
          %8 = stablehlo.add %arg6, %arg7 : tensor<f32>
          stablehlo.return %8 : tensor<f32>
        }) : (tensor<8xf32>) -> tensor<8xf32>
        stablehlo.return %7 : tensor<8xf32>
      }) : (tensor<8xf32>) -> !stablehlo.future<tensor<8xf32>>
      %9 = "stablehlo.async_done"(%6) : (!stablehlo.future<tensor<8xf32>>) -> tensor<8xf32>
      stablehlo.return %5, %9 : tensor<i32>, tensor<8xf32>
    }) : (tensor<i32>, tensor<8xf32>) -> (tensor<i32>, tensor<8xf32>)
    return %1#1 : tensor<8xf32>
  }
}
