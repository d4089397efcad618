module {
  sdy.mesh @grid = <["x"=2, "y"=4]>
  sdy.mesh @line = <["z"=8]>
  sdy.mesh @mesh = <[], device_ids=[3]>
  func.func @main(%arg0: tensor<24x24xf32> {sdy.sharding = #sdy.sharding<@grid, [{"y"}, {"x"}]>}, %arg1: tensor<24x24xf32> {sdy.sharding = #sdy.sharding<@line, [{"z"}, {}]>}) -> tensor<24x24xf32> {
    %0 = stablehlo.add %arg0, %arg1 : tensor<24x24xf32>
    return %0 : tensor<24x24xf32>
  }
}

// -----  whole values

module {
  sdy.mesh @mesh = <[], device_ids=[3]>
  sdy.mesh @mesh_of_all = <["x"=2, "y"=4]>
  func.func @main(%arg0: tensor<24x24xf32> {sdy.sharding = #sdy.sharding<@mesh_of_all, [{"y"}, {"x"}]>}, %arg1: tensor<24x24xf32> {sdy.sharding = #sdy.sharding<@mesh_of_all, [{"x", "y"}, {}]>}) -> tensor<24x24xf32> {
    %0 = stablehlo.add %arg0, %arg1 : tensor<24x24xf32>
    return %0 : tensor<24x24xf32>
  }
}
