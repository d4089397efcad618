"""Examples of the ops of Shardy's dialect, on a mesh of 2 by 4 devices."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy, composite

from tests.ops.draw import COMMON, array, dtypes, seeds, shapes
from tests.ops.example import Example
from tests.ops.program import Program
from weft.ir.dense import Dense
from weft.ir.op import Op
from weft.ir.types import Array
from weft.mesh import Axis, DimSharding, Mesh, Sharding
from weft.ops.distributed import sharding as sdy

MESH = Mesh((("x", 2), ("y", 4)))
AXES = (Axis("x"), Axis("y"), Axis("y", 1, 2), Axis("y", 2, 2))

values = st.builds(array, shapes(0, 3), dtypes(COMMON), seeds)


@composite
def shardings(draw: DrawFn, rank: int) -> Sharding:
    """A sharding of a tensor of that rank; no axis splits two dims."""
    free = list(draw(st.permutations((Axis("x"), draw(st.sampled_from(AXES[1:]))))))
    dims = []
    for _ in range(rank):
        taken = tuple(free.pop() for _ in range(draw(st.integers(0, len(free)))))
        is_open = draw(st.booleans())
        # Only a dim that is split or open has a priority.
        priority = draw(st.sampled_from((None, 1, 3))) if taken or is_open else None
        dims.append(DimSharding(taken, is_open, priority))
    replicated = tuple(sorted(free, key=str)) if draw(st.booleans()) else ()
    return Sharding(MESH, tuple(dims), replicated)


@composite
def annotation(draw: DrawFn, make: Callable[[Sharding], Op]) -> Example:
    operand = draw(values)
    return Example(make(draw(shardings(operand.ndim))), (operand,))


HEAD = """
sdy.mesh @mesh = <["x"=2, "y"=4]>
func.func @main(%0: tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, IN>})
    -> tensor<8x16xf32> {
"""
TAIL = " : tensor<8x16xf32>\n  return %1 : tensor<8x16xf32>\n}\n"


def collective(op: type[Op], sharding: str, line: str) -> SearchStrategy[Example]:
    """A collective of Shardy's on an argument of that sharding."""
    text = HEAD.replace("IN", sharding) + f"  %1 = {line}" + TAIL
    return seeds.map(
        lambda seed: Program.holding(
            op, text, np.random.default_rng(seed).standard_normal((8, 16), np.float32)
        )
    )


def program(op: type[Op], text: str) -> SearchStrategy[Example]:
    """A whole program on one array."""
    return seeds.map(lambda seed: Program.holding(op, text, _array(seed)))


def _array(seed: int) -> Array:
    return np.random.default_rng(seed).standard_normal((8, 16), np.float32)


MANUAL = """
sdy.mesh @mesh = <["x"=2, "y"=4]>
func.func @main(%0: tensor<8x16xf32>) -> tensor<8x16xf32> {
  %1 = sdy.manual_computation(%0) in_shardings=[<@mesh, [{"x"}, {"y"}]>]
      out_shardings=[<@mesh, [{"x"}, {"y"}]>] manual_axes={"x", "y"} (%2: tensor<4x4xf32>) {
    %3 = stablehlo.add %2, %2 : tensor<4x4xf32>
    sdy.return %3 : tensor<4x4xf32>
  } : (tensor<8x16xf32>) -> tensor<8x16xf32>
  return %1 : tensor<8x16xf32>
}
"""
NAMED = """
sdy.mesh @mesh = <["x"=2, "y"=4]>
func.func @main(%0: tensor<8x16xf32>) -> tensor<8x16xf32> {
  %1 = sdy.named_computation<"part">(%0) in_shardings=[<@mesh, [{"x"}, {}]>]
      out_shardings=[<@mesh, [{"x"}, {}]>] (%2: tensor<8x16xf32>) {
    %3 = stablehlo.add %2, %2 : tensor<8x16xf32>
    sdy.return %3 : tensor<8x16xf32>
  } : (tensor<8x16xf32>) -> tensor<8x16xf32>
  return %1 : tensor<8x16xf32>
}
"""
EDGE = """
func.func @main(%0: tensor<8x16xf32>) -> tensor<8x16xf32> {
  %1 = "stablehlo.while"(%0) ({
  ^bb0(%2: tensor<8x16xf32>):
    %3 = stablehlo.constant dense<false> : tensor<i1>
    stablehlo.return %3 : tensor<i1>
  }, {
  ^bb0(%2: tensor<8x16xf32>):
    %3 = sdy.data_flow_edge %2 : tensor<8x16xf32>
    stablehlo.return %3 : tensor<8x16xf32>
  }) : (tensor<8x16xf32>) -> tensor<8x16xf32>
  return %1 : tensor<8x16xf32>
}
"""
FUNC_EDGE = """
func.func @main(%0: tensor<8x16xf32>) -> tensor<8x16xf32> {
  %1 = sdy.func_data_flow_edge %0 : tensor<8x16xf32>
  return %1 : tensor<8x16xf32>
}
"""

EXAMPLES: dict[type[Op], SearchStrategy[Example]] = {
    sdy.ShardingConstraint: annotation(sdy.ShardingConstraint),
    sdy.Reshard: annotation(sdy.Reshard),
    sdy.ShardingGroup: values.map(lambda a: Example(sdy.ShardingGroup(3), (a,))),
    sdy.PropagationBarrier: st.builds(
        lambda a, way: Example(sdy.PropagationBarrier(way), (a,)), values, st.integers(0, 2)
    ),
    sdy.DataFlowEdge: program(sdy.DataFlowEdge, EDGE),
    sdy.FuncDataFlowEdge: program(sdy.FuncDataFlowEdge, FUNC_EDGE),
    sdy.ManualComputation: program(sdy.ManualComputation, MANUAL),
    sdy.NamedComputation: program(sdy.NamedComputation, NAMED),
    sdy.ShardyConstant: values.map(lambda a: Example(sdy.ShardyConstant(Dense(a)), ())),
    sdy.ShardyAllGather: collective(
        sdy.ShardyAllGather,
        '[{"x", "y"}, {}]',
        'sdy.all_gather [{"y"}, {}] %0 out_sharding=<@mesh, [{"x"}, {}]>',
    ),
    sdy.ShardyAllSlice: collective(
        sdy.ShardyAllSlice,
        '[{"x"}, {}]',
        'sdy.all_slice [{}, {"y":(1)2}] %0 out_sharding=<@mesh, [{"x"}, {"y":(1)2}]>',
    ),
    sdy.ShardyAllToAll: collective(
        sdy.ShardyAllToAll,
        '[{"x"}, {}]',
        'sdy.all_to_all [{"x"}: 0->1] %0 out_sharding=<@mesh, [{}, {"x"}]>',
    ),
    sdy.ShardyAllReduce: collective(
        sdy.ShardyAllReduce,
        '[{"x"}, {}]',
        'sdy.all_reduce {"y"} %0 out_sharding=<@mesh, [{"x"}, {}]>',
    ),
    sdy.ShardyReduceScatter: collective(
        sdy.ShardyReduceScatter,
        '[{"x"}, {}]',
        'sdy.reduce_scatter [{}, {"y"}] %0 out_sharding=<@mesh, [{"x"}, {"y"}]>',
    ),
    sdy.ShardyCollectivePermute: collective(
        sdy.ShardyCollectivePermute,
        '[{"x"}, {}]',
        'sdy.collective_permute %0 out_sharding=<@mesh, [{"y":(1)2}, {}]>',
    ),
    sdy.ShardedToUnreduced: collective(
        sdy.ShardedToUnreduced,
        '[{"x"}, {}]',
        'sdy.sharded_to_unreduced [{"x"}, {}] %0 out_sharding=<@mesh, [{}, {}], unreduced={"x"}>',
    ),
    sdy.ReplicatedToUnreduced: collective(
        sdy.ReplicatedToUnreduced,
        "[{}, {}]",
        'sdy.replicated_to_unreduced {"x"} %0 out_sharding=<@mesh, [{}, {}], unreduced={"x"}>',
    ),
}
