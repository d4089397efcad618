// A member that says nothing does not start its group.
module {
  sdy.mesh @mesh = <["x"=2, "y"=4]>
  func.func @main(%arg0: tensor<6x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{?}, {?}]>}, %arg1: tensor<3xf32>, %arg2: tensor<2x16x4x4xf32>, %arg3: tensor<6x8xf32>, %arg4: tensor<i32>) -> tensor<2x16x4x4xf32> {
    %0:2 = "stablehlo.case"(%arg4) ({
      "sdy.sharding_group"(%arg0) <{group_id = 31898 : i64}> : (tensor<6x8xf32>) -> ()
      stablehlo.return %arg1, %arg0 : tensor<3xf32>, tensor<6x8xf32>
    }, {
      "sdy.sharding_group"(%arg3) <{group_id = 31898 : i64}> : (tensor<6x8xf32>) -> ()
      stablehlo.return %arg1, %arg0 : tensor<3xf32>, tensor<6x8xf32>
    }) : (tensor<i32>) -> (tensor<3xf32>, tensor<6x8xf32>)
    return %arg2 : tensor<2x16x4x4xf32>
  }
}
