"""The oracle itself: XLA on a local program gives what the evaluator gives."""

from __future__ import annotations

import numpy as np
import pytest

from tests.oracles.xla_local import evaluated
from tests.partition.differential import check
from tests.partition.test_harness import GLOBAL, local
from tests.tolerance import assert_close
from weft.capture import parse
from weft.evaluate import evaluate
from weft.ir.module import Function, Module, Region, Value, apply
from weft.ir.types import tensor
from weft.mesh import Axis, Mesh, MeshAxes, parse_sharding
from weft.ops.combiners import combiner
from weft.ops.distributed.collective import AllGather, AllReduce, AllToAll, ReduceScatter
from weft.ops.distributed.local import (
    CHANNEL,
    AllSlice,
    AxisIndex,
    PermuteAlongAxes,
    VariadicReduceScatter,
)

PAIR = tensor(4, 8)
MESHES = (Mesh(x=4, y=2), Mesh((("x", 4), ("y", 2)), device_ids=(3, 1, 0, 2, 7, 6, 5, 4)))
ALONG = (
    MeshAxes("mesh", (Axis("x", 2, 2), Axis("y"))),
    MeshAxes("mesh", (Axis("y"), Axis("x", 1, 2))),
    MeshAxes("mesh", (Axis("x"),)),
)


def test_xla_runs_a_local_program():
    found = check(parse(GLOBAL), local=parse(local()))
    made = evaluated(found.local, found.stacked, 4)
    for ours, theirs in zip(found.results, made, strict=True):
        assert_close(theirs, ours, 8)


def every_op(mesh: Mesh, along: MeshAxes) -> Module:
    """A program with each op in which devices meet, or ask where they are, on groups of 4."""
    args = (Value(PAIR, None, 0), Value(PAIR, None, 1))
    a, b = args
    add = combiner("add", PAIR)
    split = parse_sharding(f"#sdy.sharding<@mesh, [{{{', '.join(map(str, along.axes))}}}, {{}}]>")
    nodes = [
        apply(AxisIndex(along)),
        apply(AllSlice(split, tensor(1, 8)), a),
        apply(PermuteAlongAxes(along, (3, -1, 0, 2)), a, b),
        apply(VariadicReduceScatter((0, 1), "add", along, (tensor(1, 8), tensor(4, 2))), a, b),
        apply(AllGather(1, along, (tensor(4, 32),), CHANNEL, use_global_device_ids=True), a),
        apply(AllToAll(1, 0, 4, along, CHANNEL), a),
        apply(AllReduce(along, CHANNEL, use_global_device_ids=True), a, regions=(add,)),
        apply(
            ReduceScatter(1, along, (tensor(4, 2),), CHANNEL, use_global_device_ids=True),
            b,
            regions=(add,),
        ),
    ]
    results = tuple(v for n in nodes for v in n.results)
    return Module({"main": Function("main", Region(args, nodes, results))}, {"mesh": mesh})


@pytest.mark.parametrize("mesh", MESHES, ids=["in order", "permuted"])
@pytest.mark.parametrize("along", ALONG, ids=lambda a: "+".join(map(str, a.axes)))
def test_expanded_groups_mean_the_same(mesh: Mesh, along: MeshAxes):
    module = every_op(mesh, along)
    stacks = np.arange(2 * 8 * 32, dtype=np.float32).reshape(2, 8, 4, 8)
    ours = evaluate(module, *stacks, devices=8)
    for n, (one, other) in enumerate(zip(ours, evaluated(module, stacks, 8), strict=True)):
        assert_close(other, one, what=f"result {n}")
