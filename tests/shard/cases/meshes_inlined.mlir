// Inlined, equal, and empty meshes; axes of size one.
sdy.mesh @mesh = <["x"=2, "y"=4, "o"=1]>
sdy.mesh @mesh2 = <["x"=2, "y"=4, "o"=1]>
sdy.mesh @other = <["z"=8]>
func.func private @g(%a: tensor<8x8xf32>, %b: tensor<8x8xf32> {sdy.sharding=#sdy.sharding<@mesh2,[{"x"},{?}]>}) -> (tensor<8x8xf32> {sdy.sharding=#sdy.sharding<@mesh2,[{"x","o"},{?}]>}, tensor<8x8xf32>) {
  return %a, %b : tensor<8x8xf32>, tensor<8x8xf32>
}
func.func @main(%a: tensor<8x8xf32> {sdy.sharding=#sdy.sharding<mesh<["a"=2]>,[{"a"},{?}]>}, %b: tensor<8x8xf32> {sdy.sharding=#sdy.sharding<mesh<["x"=2, "y"=4, "o"=1]>,[{"o"}p1,{"y",?}p2]>}, %c: tensor<8x8xf32> {sdy.sharding=#sdy.sharding<mesh<[], device_ids=[3]>,[]>}, %d: tensor<8x8xf32> {sdy.sharding=#sdy.sharding<mesh<[]>,[{},{}]>}) -> (tensor<8x8xf32>,tensor<8x8xf32>, tensor<8x8xf32>) {
  %1:2 = call @g(%a, %b) : (tensor<8x8xf32>, tensor<8x8xf32>) -> (tensor<8x8xf32>, tensor<8x8xf32>)
  %k = stablehlo.constant dense<1.0> : tensor<8x8xf32>
  %k1 = sdy.sharding_constraint %k <@mesh, [{},{"x"}]> : tensor<8x8xf32>
  %k2 = sdy.propagation_barrier %k allowed_direction=NONE : tensor<8x8xf32>
  %k3 = sdy.reshard %k <@mesh, [{},{"x"}]> : tensor<8x8xf32>
  %2 = stablehlo.add %k1, %k2 : tensor<8x8xf32>
  %3 = stablehlo.add %k1, %k2 : tensor<8x8xf32>
  %4 = stablehlo.add %k3, %k3 : tensor<8x8xf32>
  %5 = stablehlo.add %2, %d : tensor<8x8xf32>
  return %3, %4, %c : tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>
}
