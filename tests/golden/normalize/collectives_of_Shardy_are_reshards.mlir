module {
  sdy.mesh @grid = <["x"=2, "y"=4]>
  func.func @main(%arg0: tensor<24x24xf32> {sdy.sharding = #sdy.sharding<@grid, [{}, {"y":(1)2}]>}, %arg1: tensor<24x24xf32> {sdy.sharding = #sdy.sharding<@grid, [{"y":(1)2}, {}]>}) -> tensor<24x24xf32> {
    %0 = stablehlo.dot %arg0, %arg1 : (tensor<24x24xf32>, tensor<24x24xf32>) -> tensor<24x24xf32>
    %1 = "sdy.reduce_scatter"(%0) <{out_sharding = #sdy.sharding<@grid, [{"y":(1)2}, {}]>, reduce_scatter_axes = #sdy<list_of_axis_ref_lists[{"y":(1)2}, {}]>}> : (tensor<24x24xf32>) -> tensor<24x24xf32>
    %2 = "sdy.all_slice"(%1) <{out_sharding = #sdy.sharding<@grid, [{"y"}, {}]>, slicing_axes = #sdy<list_of_axis_ref_lists[{"y":(2)2}, {}]>}> : (tensor<24x24xf32>) -> tensor<24x24xf32>
    %3 = "sdy.all_to_all"(%2) <{out_sharding = #sdy.sharding<@grid, [{"y":(1)2}, {"y":(2)2}]>, params = #sdy<all_to_all_param_list[{"y":(2)2}: 0->1]>}> : (tensor<24x24xf32>) -> tensor<24x24xf32>
    %4 = "sdy.collective_permute"(%3) <{out_sharding = #sdy.sharding<@grid, [{"x"}, {"y":(2)2}]>}> : (tensor<24x24xf32>) -> tensor<24x24xf32>
    %5 = "sdy.all_gather"(%4) <{gathering_axes = #sdy<list_of_axis_ref_lists[{}, {"y":(2)2}]>, out_sharding = #sdy.sharding<@grid, [{"x"}, {}]>}> : (tensor<24x24xf32>) -> tensor<24x24xf32>
    return %5 : tensor<24x24xf32>
  }
}

// -----  whole values

module {
  sdy.mesh @grid = <["x"=2, "y"=4]>
  func.func @main(%arg0: tensor<24x24xf32> {sdy.sharding = #sdy.sharding<@grid, [{}, {"y":(1)2}]>}, %arg1: tensor<24x24xf32> {sdy.sharding = #sdy.sharding<@grid, [{"y":(1)2}, {}]>}) -> tensor<24x24xf32> {
    %0 = stablehlo.dot %arg0, %arg1 : (tensor<24x24xf32>, tensor<24x24xf32>) -> tensor<24x24xf32>
    %1 = "sdy.sharding_constraint"(%0) <{sharding = #sdy.sharding<@grid, [{}, {}], unreduced={"y":(1)2}>}> : (tensor<24x24xf32>) -> tensor<24x24xf32>
    %2 = "sdy.reshard"(%1) <{sharding = #sdy.sharding<@grid, [{"y":(1)2}, {}]>}> : (tensor<24x24xf32>) -> tensor<24x24xf32>
    %3 = "sdy.sharding_constraint"(%2) <{sharding = #sdy.sharding<@grid, [{"y":(1)2}, {}]>}> : (tensor<24x24xf32>) -> tensor<24x24xf32>
    %4 = "sdy.reshard"(%3) <{sharding = #sdy.sharding<@grid, [{"y"}, {}]>}> : (tensor<24x24xf32>) -> tensor<24x24xf32>
    %5 = "sdy.sharding_constraint"(%4) <{sharding = #sdy.sharding<@grid, [{"y"}, {}]>}> : (tensor<24x24xf32>) -> tensor<24x24xf32>
    %6 = "sdy.reshard"(%5) <{sharding = #sdy.sharding<@grid, [{"y":(1)2}, {"y":(2)2}]>}> : (tensor<24x24xf32>) -> tensor<24x24xf32>
    %7 = "sdy.reshard"(%6) <{sharding = #sdy.sharding<@grid, [{"x"}, {"y":(2)2}]>}> : (tensor<24x24xf32>) -> tensor<24x24xf32>
    %8 = "sdy.sharding_constraint"(%7) <{sharding = #sdy.sharding<@grid, [{"x"}, {"y":(2)2}]>}> : (tensor<24x24xf32>) -> tensor<24x24xf32>
    %9 = "sdy.reshard"(%8) <{sharding = #sdy.sharding<@grid, [{"x"}, {}]>}> : (tensor<24x24xf32>) -> tensor<24x24xf32>
    return %9 : tensor<24x24xf32>
  }
}
