"""Collectives as pairs: the text reads back, and every device gets what it got before."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.ops.draw import seeds
from tests.optimize.local_programs import local_program
from tests.tolerance import assert_close
from weft.capture import parse
from weft.evaluate import evaluate
from weft.ir.module import Function, Module, Node, Region, Value, apply
from weft.ir.types import FutureType, TupleType, tensor
from weft.ir.verify import verify
from weft.mesh import Axis, Mesh, MeshAxes
from weft.ops.combiners import combiner
from weft.ops.control import AsyncDone, AsyncStart
from weft.ops.distributed.collective import AllGather, AllReduce, AllToAll
from weft.ops.distributed.local import CHANNEL, PermuteAlongAxes, VariadicReduceScatter
from weft.optimize import split_async

AXES = MeshAxes("mesh", (Axis("x"),))
T, PIECE = tensor(4, 3), tensor(1, 3)


def one_collective(kind: str, operands: int) -> Module:
    """A program of one collective on so many operands."""
    args = tuple(Value(T, None, n) for n in range(operands))
    region = (combiner("add", T),)
    match kind:
        case "all_gather":
            op = AllGather(1, AXES, (tensor(4, 12),) * operands, CHANNEL, True)
            node = apply(op, *args)
        case "all_reduce":
            node = apply(AllReduce(AXES, CHANNEL, True), *args, regions=region)
        case "reduce_scatter":
            op = VariadicReduceScatter((0,) * operands, "add", AXES, (PIECE,) * operands)
            node = apply(op, *args)
        case "all_to_all":
            node = apply(AllToAll(0, 1, 4, AXES, CHANNEL), *args)
        case _:
            node = apply(PermuteAlongAxes(AXES, (1, 2, -1, 0)), *args)
    main = Function("main", Region(args, [node], node.results))
    return verify(Module({"main": main}, {"mesh": Mesh(x=4)}))


def pairs(module: Module) -> list[tuple[Node, Node]]:
    dones = [n for n in module.nodes() if isinstance(n.op, AsyncDone)]
    return [(d.operands[0].node, d) for d in dones if d.operands[0].node is not None]


@pytest.mark.parametrize("operands", [1, 2])
@pytest.mark.parametrize(
    "kind", ["all_gather", "all_reduce", "reduce_scatter", "all_to_all", "permute"]
)
def test_each_collective_reads_back(kind: str, operands: int):
    module = one_collective(kind, operands)
    after = verify(split_async(module))
    ((start, _),) = pairs(after)
    assert isinstance(start.op, AsyncStart)
    assert start.regions[0].nodes[0].op is module.function("main").body.nodes[0].op
    assert isinstance(start.results[0].type, FutureType | TupleType)
    read = parse(after.text())
    assert read.text() == after.text(), "jaxlib's parser takes it, and we read the same"
    draw = [local[None].repeat(4, 0) * 1.0 for local in _arrays(operands)]
    for one, other in zip(
        evaluate(module, *draw, devices=4), evaluate(read, *draw, devices=4), strict=True
    ):
        assert_close(one, other)


def _arrays(operands: int) -> list[object]:
    from tests.ops.draw import array

    return [array((4, 3), T.dtype, n) for n in range(operands)]


@settings(max_examples=25)
@given(seeds, st.integers(1, 16))
def test_meaning_is_kept(seed: int, steps: int):
    program = local_program(seed, steps)
    after = verify(split_async(program.module))
    assert split_async(after) is after, "what is split is not split again"
    outside = [n for f in after.functions.values() for n in f.body.nodes]
    assert not any(n.op.collective for n in outside)
    arrays, count = program.arrays(seed), program.mesh.size
    expected = evaluate(program.module, *arrays, devices=count)
    for one, other in zip(evaluate(after, *arrays, devices=count), expected, strict=True):
        assert_close(one, other)


def test_places_are_kept():
    program = local_program(5, 12).module
    places = {n.loc for n in program.nodes() if n.op.collective}
    after = split_async(program)
    assert {start.loc for start, _ in pairs(after)} == places
    assert {done.loc for _, done in pairs(after)} == places


def test_nothing_to_split():
    module = parse(
        "module { func.func @main(%x: tensor<f32>) -> tensor<f32> { return %x : tensor<f32> } }"
    )
    assert split_async(module) is module
