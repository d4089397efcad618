// Shardings of arguments and results on several meshes, one of them a single device.
sdy.mesh @mesh = <["x"=2, "y"=4]>
  sdy.mesh @max = <[], device_ids=[3]>
  sdy.mesh @emp = <[]>
  sdy.mesh @oth = <["z"=8]>
  func.func private @f0(%arg0: tensor<8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>}, %arg1: tensor<16xf32> {sdy.sharding = #sdy.sharding<@max, []>}, %arg2: tensor<3xf32>) -> (tensor<8xf32> {sdy.sharding = #sdy.sharding<@max, []>}, tensor<16xf32>, tensor<3xf32>) {
    return %arg0, %arg1, %arg2 : tensor<8xf32>, tensor<16xf32>, tensor<3xf32>
  }
  func.func private @f1(%arg0: tensor<8xf32> {sdy.sharding = #sdy.sharding<@emp, [{}]>}, %arg1: tensor<16xf32>, %arg2: tensor<3xf32>) -> (tensor<8xf32> {sdy.sharding = #sdy.sharding<@max, []>}, tensor<16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>}, tensor<3xf32>) {
    return %arg0, %arg1, %arg2 : tensor<8xf32>, tensor<16xf32>, tensor<3xf32>
  }
  func.func private @f2(%arg0: tensor<8xf32> {sdy.sharding = #sdy.sharding<@emp, [{}]>}, %arg1: tensor<16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>}, %arg2: tensor<3xf32>) -> (tensor<8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>}, tensor<16xf32> {sdy.sharding = #sdy.sharding<@oth, [{"z"}]>}, tensor<3xf32>) {
    return %arg0, %arg1, %arg2 : tensor<8xf32>, tensor<16xf32>, tensor<3xf32>
  }
  func.func private @f3(%arg0: tensor<8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>}, %arg1: tensor<16xf32> {sdy.sharding = #sdy.sharding<@oth, [{"z"}]>}, %arg2: tensor<3xf32>) -> (tensor<8xf32>, tensor<16xf32> {sdy.sharding = #sdy.sharding<@emp, [{}]>}, tensor<3xf32>) {
    return %arg0, %arg1, %arg2 : tensor<8xf32>, tensor<16xf32>, tensor<3xf32>
  }
  func.func @main(%arg0: tensor<8xf32>, %arg1: tensor<16xf32>, %arg2: tensor<3xf32>) -> tensor<8xf32> {
    %0:3 = func.call @f0(%arg0, %arg1, %arg2) : (tensor<8xf32>, tensor<16xf32>, tensor<3xf32>) -> (tensor<8xf32>, tensor<16xf32>, tensor<3xf32>)
    %1:3 = func.call @f1(%arg0, %arg1, %arg2) : (tensor<8xf32>, tensor<16xf32>, tensor<3xf32>) -> (tensor<8xf32>, tensor<16xf32>, tensor<3xf32>)
    %2:3 = func.call @f2(%arg0, %arg1, %arg2) : (tensor<8xf32>, tensor<16xf32>, tensor<3xf32>) -> (tensor<8xf32>, tensor<16xf32>, tensor<3xf32>)
    %3:3 = func.call @f3(%arg0, %arg1, %arg2) : (tensor<8xf32>, tensor<16xf32>, tensor<3xf32>) -> (tensor<8xf32>, tensor<16xf32>, tensor<3xf32>)
    return %arg0 : tensor<8xf32>
  }
