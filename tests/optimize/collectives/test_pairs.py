"""Pairs of collectives along any axes and dims: what they become, in a table; the same numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path

import numpy as np

from tests.optimize.collectives.test_collectives import MESH, groups, program, reduced
from weft.evaluate import evaluate
from weft.ir.module import Module, Node, Value, apply
from weft.ir.types import TensorType, tensor
from weft.ops.combiners import combiner
from weft.ops.distributed.collective import AllGather, ReduceScatter
from weft.ops.distributed.local import CHANNEL
from weft.ops.elementwise.pointwise import Negate
from weft.ops.shape import BroadcastInDim
from weft.optimize import canonicalize_collectives, cse, drop_dead

GOLDEN = Path(__file__).parents[2] / "golden" / "optimize" / "pairs_of_collectives.txt"
Step = Callable[[Value], Node]


def resized(value: Value, dim: int, count: float) -> TensorType:
    assert isinstance(value.type, TensorType)
    sizes = [int(n * count) if d == dim else n for d, n in enumerate(value.type.sizes)]
    return value.type.with_shape(tuple(sizes))


def maximum(value: Value, *names: str) -> Node:
    """As `reduced`, but by the largest."""
    assert isinstance(value.type, TensorType)
    op = reduced(value, *names).op
    return apply(op, value, regions=(combiner("max", value.type),))


def scattered(value: Value, dim: int, *names: str) -> Node:
    assert isinstance(value.type, TensorType)
    count = int(np.prod([MESH.axis_sizes[name] for name in names]))
    outs = (resized(value, dim, 1 / count),)
    op = ReduceScatter(dim, groups(*names), outs, CHANNEL, use_global_device_ids=True)
    return apply(op, value, regions=(combiner("add", value.type),))


def gathered(value: Value, dim: int, *names: str) -> Node:
    count = int(np.prod([MESH.axis_sizes[name] for name in names]))
    outs = (resized(value, dim, count),)
    return apply(AllGather(dim, groups(*names), outs, CHANNEL, use_global_device_ids=True), value)


def copies(value: Value) -> Node:
    return apply(BroadcastInDim((0, 1), tensor(8, 8, 3)), value)


def steps() -> Iterator[tuple[str, Step]]:
    for names in (("x",), ("y",), ("x", "y")):
        along = "".join(names)
        yield f"all_reduce {along}", lambda v, names=names: reduced(v, *names)
        yield f"maximum {along}", lambda v, names=names: maximum(v, *names)
        for dim in (0, 1):
            yield (
                f"scatter {dim} {along}",
                lambda v, dim=dim, names=names: scattered(v, dim, *names),
            )
            yield f"gather {dim} {along}", lambda v, dim=dim, names=names: gathered(v, dim, *names)
    yield "negate", lambda v: apply(Negate(), v)
    yield "copies", copies


def pairs() -> Iterator[tuple[str, Module]]:
    for (inner, first), (outer, second) in product(steps(), steps()):
        argument = Value(tensor(8, 8), None, 0)
        one = first(argument)
        sizes = one.results[0].type.sizes
        if outer == "copies" or ("scatter" in outer and sizes[int(outer.split()[1])] % 8):
            continue
        two = second(one.results[0])
        yield f"{outer} of {inner}", program((argument,), [one, two], two.results[0])


def described(module: Module) -> str:
    """Its ops, and the bytes of what they make."""
    names = Counter(node.op.name.partition(".")[2] for node in module.nodes())
    made = sum(t.nbytes for node in module.nodes() for t in node.types)
    return f"{', '.join(f'{n} {name}' for name, n in names.items())}, {made} bytes"


def test_pairs(golden: Callable[[Path, str], None]):
    arrays = np.random.default_rng(0).integers(-9, 9, (8, 8, 8)).astype(np.float32)
    lines = []
    for name, module in pairs():
        after = drop_dead(cse(canonicalize_collectives(module)))
        if after.text() != module.text():
            (found,), (expected,) = (evaluate(m, arrays, devices=8) for m in (after, module))
            np.testing.assert_array_equal(found, expected, err_msg=name)
            lines.append(f"{name}: {described(module)} to {described(after)}")
    golden(GOLDEN, "\n".join(lines) + "\n")
