// The region of an async op shares the shardings of its operands.
module {
  sdy.mesh @mesh = <["x"=2, "y"=4]>
  func.func @main(%arg0: tensor<6x6xbf16>, %arg9: tensor<6x6xbf16> {sdy.sharding = #sdy.sharding<@mesh, [{"x", ?}, {?}]>}) -> (tensor<6x6xbf16>,tensor<6x6xbf16> {sdy.sharding = #sdy.sharding<@mesh, [{"y", ?}, {?}]>}) {
    %0 = "stablehlo.async_start"(%arg0) ({
    ^bb0(%arg1: tensor<6x6xbf16>):
      %1 = "stablehlo.collective_permute"(%arg1) <{source_target_pairs = dense<0> : tensor<1x2xi64>}> {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{?}, {"x", ?}]>]>} : (tensor<6x6xbf16>) -> tensor<6x6xbf16>
      stablehlo.return %1 : tensor<6x6xbf16>
    }) : (tensor<6x6xbf16>) -> !stablehlo.future<tensor<6x6xbf16>>
    %2 = "stablehlo.async_done"(%0) : (!stablehlo.future<tensor<6x6xbf16>>) -> tensor<6x6xbf16>
    %3 = "stablehlo.async_start"(%arg9) ({
    ^bb0(%arg1: tensor<6x6xbf16>):
      %1 = "stablehlo.collective_permute"(%arg1) <{source_target_pairs = dense<0> : tensor<1x2xi64>}>  : (tensor<6x6xbf16>) -> tensor<6x6xbf16>
      stablehlo.return %1 : tensor<6x6xbf16>
    }) : (tensor<6x6xbf16>) -> !stablehlo.future<tensor<6x6xbf16>>
    %4 = "stablehlo.async_done"(%3) : (!stablehlo.future<tensor<6x6xbf16>>) -> tensor<6x6xbf16>
    return %2, %4 : tensor<6x6xbf16>, tensor<6x6xbf16>
  }
}
