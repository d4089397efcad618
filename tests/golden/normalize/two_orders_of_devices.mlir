module {
  sdy.mesh @grid = <["x"=2, "y"=4]>
  sdy.mesh @back = <["x"=2, "y"=4], device_ids=[7, 6, 5, 4, 3, 2, 1, 0]>
  func.func @main(%arg0: tensor<24x24xf32> {sdy.sharding = #sdy.sharding<@grid, [{"y"}, {"x"}]>}, %arg1: tensor<24x24xf32> {sdy.sharding = #sdy.sharding<@back, [{"y"}, {}]>}) -> (tensor<24x24xf32> {sdy.sharding = #sdy.sharding<@back, [{}, {"x"}]>}) {
    %0 = stablehlo.add %arg0, %arg1 : tensor<24x24xf32>
    return %0 : tensor<24x24xf32>
  }
}

// -----  whole values

module {
  sdy.mesh @mesh = <["x"=2, "y"=4]>
  func.func @main(%arg0: tensor<24x24xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"y"}, {"x"}]>}, %arg1: tensor<24x24xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"y"}, {}]>}) -> (tensor<24x24xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>}) {
    %0 = stablehlo.add %arg0, %arg1 : tensor<24x24xf32>
    return %0 : tensor<24x24xf32>
  }
}

// -----  pieces

module {
  sdy.mesh @mesh = <["x"=2, "y"=4]>
  func.func @main(%arg0: tensor<24x24xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"y"}, {"x"}]>}, %arg1: tensor<24x24xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"y"}, {}]>, weft.device_order = "7 6 5 4 3 2 1 0"}) -> (tensor<24x24xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>, weft.device_order = "7 6 5 4 3 2 1 0"}) {
    %0 = stablehlo.add %arg0, %arg1 : tensor<24x24xf32>
    return %0 : tensor<24x24xf32>
  }
}
