// Free axes pass through manual computations, one inside the other; size-one axes.
sdy.mesh @mesh = <["x"=2, "y"=4, "o"=1]>
func.func @main(%a: tensor<16x16xf32>, %b: tensor<16x16xf32>, %c: tensor<16x16xf32> {sdy.sharding=#sdy.sharding<@mesh,[{?},{"y",?}]>}, %d: tensor<16x16xf32> {sdy.sharding=#sdy.sharding<@mesh,[{"o","x",?},{}]>}) -> (tensor<16x16xf32>,tensor<16x16xf32>) {
  %0 = stablehlo.add %a, %c : tensor<16x16xf32>
  %1 = sdy.manual_computation(%0, %b) in_shardings=[<@mesh, [{"x",?}, {?}]>, <@mesh, [{"x"}, {}], replicated={"y"}>] out_shardings=[<@mesh, [{"x",?}, {?}]>] manual_axes={"o","x"} (%u: tensor<8x16xf32>, %v: tensor<8x16xf32>) {
     %2 = stablehlo.add %u, %v : tensor<8x16xf32>
     %3 = stablehlo.sine %2 : tensor<8x16xf32>
     %m = sdy.manual_computation(%3) in_shardings=[<@mesh, [{}, {"y"}]>] out_shardings=[<@mesh, [{"y"}, {}]>] manual_axes={"y"} (%z: tensor<8x4xf32>) {
        %zz = stablehlo.reshape %z : (tensor<8x4xf32>) -> tensor<2x16xf32>
        sdy.return %zz :  tensor<2x16xf32>
     } : (tensor<8x16xf32>) -> tensor<8x16xf32>
     sdy.return %3 : tensor<8x16xf32>
  } : (tensor<16x16xf32>, tensor<16x16xf32>) -> tensor<16x16xf32>
  %4 = stablehlo.add %1, %d : tensor<16x16xf32>
  return %4, %1 : tensor<16x16xf32>, tensor<16x16xf32>
}
