"""Policies for whole programs, and values and loops that need less to be sent."""

from __future__ import annotations

from tests.partition.program import Program
from weft.capture import parse
from weft.cost.sent import bytes_sent
from weft.ir.module import Module
from weft.ops.shape import BroadcastInDim
from weft.partition import partition
from weft.partition.program import ModuleState
from weft.partition.strategy.dim_classes import dim_classes
from weft.partition.strategy.policies import overriding
from weft.shard import shard

HEAD = 'sdy.mesh @mesh = <["x"=8]>\n'
# A layer whose weights are split by the axis that splits the batch: to be gathered.
LAYERS = (
    HEAD
    + """func.func public @main(
    %x: tensor<64x32xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>},
    %up: tensor<32x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x", ?}, {?}]>},
    %down: tensor<16x32xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x", ?}, {?}]>}
) -> (tensor<64x32xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) {
  %0 = stablehlo.dot_general %x, %up, contracting_dims = [1] x [0]
    : (tensor<64x32xf32>, tensor<32x16xf32>) -> tensor<64x16xf32>
  %1 = stablehlo.tanh %0 : tensor<64x16xf32>
  %2 = stablehlo.dot_general %1, %down, contracting_dims = [1] x [0]
    : (tensor<64x16xf32>, tensor<16x32xf32>) -> tensor<64x32xf32>
  return %2 : tensor<64x32xf32>
}
"""
)


def sent(module: Module) -> dict[str, float]:
    """Bytes by the name of the collective."""
    found: dict[str, float] = {}
    for row in bytes_sent(module):
        found[row.name] = found.get(row.name, 0.0) + row.total
    return found


def test_dims_along_which_a_factor_runs_are_one_class():
    module = parse(LAYERS)
    x, up, down = module.function("main").body.args
    first, tanh, last = (node.results[0] for node in module.function("main").body.nodes)
    classes = dim_classes(module)
    batch, inner, outer = ((x, 0), (first, 0), (tanh, 0), (last, 0)), ((up, 1), (down, 0)), (x, 1)
    assert len({classes.find(dim) for dim in batch}) == 1
    assert classes.find(inner[0]) == classes.find(inner[1]) == classes.find((tanh, 1))
    assert len({classes.find(dim) for dim in (batch[0], inner[0], outer)}) == 3


def test_the_largest_class_is_split_first():
    module = shard(parse(LAYERS))
    known = ModuleState(module, module.meshes["mesh"], "mesh")
    (override,) = overriding(module, known.splits, known.mesh)
    splits = {tuple(str(a) for axes in split for a in axes) for split in override.values()}
    assert len(override) == 3 and splits == {('"x"',)}
    assert all(split[0] and not split[1] for split in override.values())


def test_weights_are_gathered_where_that_sends_less():
    found = sent(partition(shard(parse(LAYERS))))
    assert found == {"stablehlo.all_gather": 2 * 32 * 16 * 4 * 7 / 8}
    assert Program(LAYERS).wrong() is None


def test_what_is_whole_everywhere_is_computed_anew_for_other_pieces():
    text = (
        HEAD
        + """func.func public @main(
    %x: tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>},
    %y: tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>},
    %s: tensor<16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}]>}
) -> (tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>},
      tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>}) {
  %0 = stablehlo.broadcast_in_dim %s, dims = [1] : (tensor<16xf32>) -> tensor<8x16xf32>
  %1 = stablehlo.add %x, %0 : tensor<8x16xf32>
  %2 = stablehlo.add %y, %0 : tensor<8x16xf32>
  return %1, %2 : tensor<8x16xf32>, tensor<8x16xf32>
}
"""
    )
    local = partition(shard(parse(text)))
    made = [node.types[0] for node in local.nodes() if isinstance(node.op, BroadcastInDim)]
    assert {str(t) for t in made} == {"tensor<1x16xf32>", "tensor<8x2xf32>"}
    assert sent(local) == {}
    assert Program(text).wrong() is None


# Twelve layers, eight of which devices hold: a loop reads one in each round.
LOOP = (
    HEAD
    + """func.func public @main(
    %w: tensor<LAYERSx16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>},
    %x: tensor<16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>}
) -> (tensor<16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>}) {
  %i = stablehlo.constant dense<0> : tensor<i32>
  %0:3 = stablehlo.while(%n = %i, %v = %w, %a = %x)
    : tensor<i32>, tensor<LAYERSx16xf32>, tensor<16xf32>
  cond {
    %last = stablehlo.constant dense<LAYERS> : tensor<i32>
    %more = stablehlo.compare LT, %n, %last : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %more : tensor<i1>
  } do {
    %zero = stablehlo.constant dense<0> : tensor<i32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %row = stablehlo.dynamic_slice %v, %n, %zero, sizes = [1, 16]
      : (tensor<LAYERSx16xf32>, tensor<i32>, tensor<i32>) -> tensor<1x16xf32>
    %flat = stablehlo.reshape %row : (tensor<1x16xf32>) -> tensor<16xf32>
    %next = stablehlo.add %a, %flat : tensor<16xf32>
    %m = stablehlo.add %n, %one : tensor<i32>
    stablehlo.return %m, %v, %next : tensor<i32>, tensor<LAYERSx16xf32>, tensor<16xf32>
  }
  return %0#2 : tensor<16xf32>
}
"""
)


def test_what_a_loop_slices_is_exchanged_before_it():
    text = LOOP.replace("LAYERS", "8")
    assert sent(partition(shard(parse(text)))) == {"stablehlo.all_to_all": 16 * 4 * 7 / 8}
    assert Program(text).wrong() is None


def test_layers_that_devices_do_not_divide_are_exchanged_too():
    text = LOOP.replace("LAYERS", "12")  # two on each of the first six devices
    found = sent(partition(shard(parse(text))))
    assert Program(text).wrong() is None
    assert "stablehlo.all_gather" not in found
