module {
  sdy.mesh @mesh = <["x"=2, "y"=4]>
  func.func @main(%arg0: tensor<67108864xf32>, %arg1: tensor<134217728xf32>, %arg2: tensor<16777216xf32>) -> (tensor<67108864xf32>, tensor<134217728xf32>) {
    %0 = stablehlo.constant dense<0> : tensor<i32>
    %1:4 = "stablehlo.while"(%0, %arg0, %arg1, %arg2) ({
    ^bb0(%arg3: tensor<i32>, %arg4: tensor<67108864xf32>, %arg5: tensor<134217728xf32>, %arg6: tensor<16777216xf32>):
      %2 = stablehlo.constant dense<4> : tensor<i32>
      %3 = stablehlo.compare LT, %arg3, %2, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %3 : tensor<i1>
    }, {
    ^bb0(%arg7: tensor<i32>, %arg8: tensor<67108864xf32>, %arg9: tensor<134217728xf32>, %arg10: tensor<16777216xf32>):
      %4 = "stablehlo.all_gather"(%arg10) <{all_gather_dim = 0 : i64, channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "y">]>, use_global_device_ids}> : (tensor<16777216xf32>) -> tensor<67108864xf32>
      %5 = stablehlo.add %arg8, %4 : tensor<67108864xf32>
      %6 = "stablehlo.all_gather"(%arg10) <{all_gather_dim = 0 : i64, channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "x">, #stablehlo.axis_ref<name = "y">]>, use_global_device_ids}> : (tensor<16777216xf32>) -> tensor<134217728xf32>
      %7 = stablehlo.add %arg9, %6 : tensor<134217728xf32>
      %8 = stablehlo.constant dense<1> : tensor<i32>
      %9 = stablehlo.add %arg7, %8 : tensor<i32>
      stablehlo.return %9, %5, %7, %arg10 : tensor<i32>, tensor<67108864xf32>, tensor<134217728xf32>, tensor<16777216xf32>
    }) : (tensor<i32>, tensor<67108864xf32>, tensor<134217728xf32>, tensor<16777216xf32>) -> (tensor<i32>, tensor<67108864xf32>, tensor<134217728xf32>, tensor<16777216xf32>)
    return %1#1, %1#2 : tensor<67108864xf32>, tensor<134217728xf32>
  }
}
// becomes
module {
  sdy.mesh @mesh = <["x"=2, "y"=4]>
  func.func @main(%arg0: tensor<67108864xf32>, %arg1: tensor<134217728xf32>, %arg2: tensor<16777216xf32>) -> (tensor<67108864xf32>, tensor<134217728xf32>) {
    %0 = stablehlo.constant dense<0> : tensor<i32>
    %1 = "stablehlo.all_gather"(%arg2) <{all_gather_dim = 0 : i64, channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "y">]>, use_global_device_ids}> : (tensor<16777216xf32>) -> tensor<67108864xf32>
    %2:4 = "stablehlo.while"(%0, %arg0, %arg1, %arg2) ({
    ^bb0(%arg3: tensor<i32>, %arg4: tensor<67108864xf32>, %arg5: tensor<134217728xf32>, %arg6: tensor<16777216xf32>):
      %3 = stablehlo.constant dense<4> : tensor<i32>
      %4 = stablehlo.compare LT, %arg3, %3, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %4 : tensor<i1>
    }, {
    ^bb0(%arg7: tensor<i32>, %arg8: tensor<67108864xf32>, %arg9: tensor<134217728xf32>, %arg10: tensor<16777216xf32>):
      %5 = stablehlo.add %arg8, %1 : tensor<67108864xf32>
      %6 = "stablehlo.all_gather"(%arg10) <{all_gather_dim = 0 : i64, channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "x">, #stablehlo.axis_ref<name = "y">]>, use_global_device_ids}> : (tensor<16777216xf32>) -> tensor<134217728xf32>
      %7 = stablehlo.add %arg9, %6 : tensor<134217728xf32>
      %8 = stablehlo.constant dense<1> : tensor<i32>
      %9 = stablehlo.add %arg7, %8 : tensor<i32>
      stablehlo.return %9, %5, %7, %arg10 : tensor<i32>, tensor<67108864xf32>, tensor<134217728xf32>, tensor<16777216xf32>
    }) : (tensor<i32>, tensor<67108864xf32>, tensor<134217728xf32>, tensor<16777216xf32>) -> (tensor<i32>, tensor<67108864xf32>, tensor<134217728xf32>, tensor<16777216xf32>)
    return %2#1, %2#2 : tensor<67108864xf32>, tensor<134217728xf32>
  }
}
