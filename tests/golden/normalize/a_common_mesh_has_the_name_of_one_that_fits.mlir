module {
  sdy.mesh @grid = <["x"=2, "y"=4]>
  sdy.mesh @mesh = <["z"=8]>
  func.func @main(%arg0: tensor<24x24xf32> {sdy.sharding = #sdy.sharding<@grid, [{"y"}, {"x"}]>}, %arg1: tensor<24x24xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"z"}, {}]>}) -> tensor<24x24xf32> {
    %0 = stablehlo.add %arg0, %arg1 : tensor<24x24xf32>
    return %0 : tensor<24x24xf32>
  }
}

// -----  whole values

module {
  sdy.mesh @mesh = <["x"=2, "y"=4]>
  func.func @main(%arg0: tensor<24x24xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"y"}, {"x"}]>}, %arg1: tensor<24x24xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x", "y"}, {}]>}) -> tensor<24x24xf32> {
    %0 = stablehlo.add %arg0, %arg1 : tensor<24x24xf32>
    return %0 : tensor<24x24xf32>
  }
}
