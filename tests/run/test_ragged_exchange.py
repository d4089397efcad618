"""The ragged all-to-all: against a loop over rows, in lockstep, between processes, and from JAX."""

from __future__ import annotations

import runpy
from pathlib import Path

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec

import weft
from tests.run.collectives import lockstep
from tests.run.processes import Processes
from tests.tolerance import assert_close
from weft.capture.stablehlo.parser import parse
from weft.cost.sent import bytes_sent
from weft.errors import WeftError
from weft.evaluate import evaluate
from weft.ir.module import Function, Module, Region, Value, apply
from weft.ir.types import Array, tensor
from weft.ir.verify import verify
from weft.mesh import Axis, DimSharding, Mesh, MeshAxes, Sharding
from weft.ops.distributed.local import CHANNEL
from weft.ops.distributed.ragged import RaggedAllToAll

EXAMPLES = Path(__file__).parents[2] / "examples"
ROWS, ROOM, WIDTH = 12, 30, 3
# The exchange is no kernel of a target's.
pytestmark = pytest.mark.parametrize("target", ["numpy"], indirect=True)


def module_of(mesh: Mesh, axes: tuple[Axis, ...], slices: int) -> Module:
    """A program of one exchange, all of whose operands vary along all axes."""
    vector = tensor(slices, dtype="i32")
    types = (tensor(ROWS, WIDTH), tensor(ROOM, WIDTH), vector, vector, vector, vector)
    args = tuple([Value(t, None, n) for n, t in enumerate(types)])
    node = apply(RaggedAllToAll(MeshAxes("mesh", axes), CHANNEL), *args)
    everywhere = tuple([Axis(name) for name, _ in mesh.axes])
    attrs = tuple(
        [
            (("weft.sharding", str(Sharding("mesh", (DimSharding(),) * t.rank, (), everywhere))),)
            for t in types
        ]
    )
    body = Region(args, [node], node.results)
    main = Function("main", body, arg_attrs=attrs, res_attrs=((),))
    module = Module({"main": main}, {"mesh": mesh})
    verify(module)
    return module


def routes(groups: list[list[int]], each: int, seed: int = 0) -> tuple[list[Array], Array]:
    """Operands of every device, with slices of all sizes, and the results."""
    random = np.random.default_rng(seed)
    devices, count = sum(map(len, groups)), len(groups[0])
    x = random.standard_normal((devices, ROWS, WIDTH)).astype("f")
    output = random.standard_normal((devices, ROOM, WIDTH)).astype("f")
    sizes = random.integers(0, 3, (devices, count * each)).astype("i")
    starts, places, awaited = (np.zeros_like(sizes) for _ in range(3))
    expected = output.copy()
    for group in groups:
        full = dict.fromkeys(group, 0)
        for s, sender in enumerate(group):
            for n, size in enumerate(sizes[sender]):
                receiver, start = group[n // each], random.integers(0, ROWS - size + 1)
                place = full[receiver]
                full[receiver] += size
                starts[sender, n], places[sender, n] = start, place
                awaited[receiver, s * each + n % each] = size
                expected[receiver, place : place + size] = x[sender, start : start + size]
    return [x, output, starts, sizes, places, awaited], expected


@pytest.mark.parametrize("each", [1, 2])
@pytest.mark.parametrize("stacked", [None, (), ("x",), ("y",)], ids=str)
@pytest.mark.parametrize("axes", [("y",), ("x", "y")], ids=str)
def test_rows_go_where_they_are_sent(axes, stacked, each):
    mesh = Mesh(x=2, y=2)
    along = tuple([Axis(name) for name in axes])
    groups = [list(group) for group in mesh.groups(along)]
    pieces, expected = routes(groups, each)
    module = module_of(mesh, along, len(groups[0]) * each)
    if stacked is None:
        (made,) = lockstep(module, pieces)
    else:
        (made,) = Processes(module, [Axis(name) for name in stacked]).run(pieces)
    np.testing.assert_array_equal(made, expected)


def test_processes_send_only_the_rows_of_others():
    mesh = Mesh(x=4)
    pieces, expected = routes([[0, 1, 2, 3]], 1)
    processes = Processes(module_of(mesh, (Axis("x"),), 4), [])
    np.testing.assert_array_equal(processes.run(pieces)[0], expected)
    apart = 1 - np.eye(4, dtype=int)
    rows = (pieces[3] * apart).sum() * WIDTH * 4
    assert processes.sent == rows + apart.sum() * 4  # and the place of every slice


def test_its_text_is_read_back():
    module = module_of(Mesh(x=2), (Axis("x"),), 2)
    text = str(module)
    assert "ragged_all_to_all" in text and "replica_groups = dense<[[0, 1]]>" in text
    assert str(parse(text)) == text


@pytest.mark.parametrize(
    ("changed", "value", "said"),
    [(5, 9, "which awaits 9"), (2, 11, "of 12 are sent"), (4, 29, "of 30 are written")],
)
def test_slices_that_do_not_fit(changed, value, said):
    pieces, _ = routes([[0, 1]], 1)
    pieces[3][:], pieces[5][:] = 2, 2
    pieces[changed][0, 0] = value
    with pytest.raises(WeftError, match=said):
        lockstep(module_of(Mesh(x=2), (Axis("x"),), 2), pieces)


def exchanged(*values):
    return jax.lax.ragged_all_to_all(*values, axis_name="x")


def test_of_jax():
    """Forward and backward; XLA has none for CPUs."""
    spec = PartitionSpec("x")
    share = jax.shard_map(exchanged, in_specs=(spec,) * 6, out_specs=spec, check_vma=False)

    def slope(x, *rest):
        return jax.grad(lambda x: (share(x, *rest) * weights).sum())(x)

    pieces, expected = routes([[0, 1, 2, 3]], 1)
    for sender in range(4):  # slices that do not overlap have a gradient
        pieces[2][sender] = np.cumsum([0, *pieces[3][sender][:-1]])
    flat = [p.reshape(-1, *p.shape[2:]) for p in pieces]
    mesh = weft.Mesh(x=4)
    made = np.asarray(weft.compile(share, *flat, mesh=mesh)(*flat)).reshape(expected.shape)
    op = RaggedAllToAll(((0, 1, 2, 3),), CHANNEL)
    members = [tuple([p[d] for p in pieces]) for d in range(4)]
    np.testing.assert_array_equal(made, [row for (row,) in op.reference(*members)])
    weights = np.random.default_rng(1).standard_normal((4 * ROOM, WIDTH)).astype("f")
    back = np.asarray(weft.compile(slope, *flat, mesh=mesh)(*flat)).reshape(4, ROWS, WIDTH)
    given = np.zeros_like(back)
    for sender in range(4):
        for receiver in range(4):
            start, size, place = (int(pieces[n][sender, receiver]) for n in (2, 3, 4))
            rows = weights.reshape(4, ROOM, WIDTH)[receiver, place : place + size]
            given[sender, start : start + size] += rows
    np.testing.assert_array_equal(back, given)


def test_its_bytes_are_at_most_those_of_its_rows():
    module = module_of(Mesh(x=4), (Axis("x"),), 4)
    (row,) = bytes_sent(module)
    assert (row.devices, row.bytes) == (4, ROWS * WIDTH * 4 * 3 / 4)


@pytest.mark.long
def test_tokens_travel_to_their_experts_and_gradients_back():
    """The example's layer has the gradients of the plain one."""
    experts = runpy.run_path(str(EXAMPLES / "experts.py"))
    given = experts["example"]()
    made = experts["compiled"](jax.value_and_grad(experts["dispatched_loss"]))(*given)
    plain = jax.jit(jax.value_and_grad(experts["gathered_loss"]))(*given)
    for mine, theirs in zip(jax.tree.leaves(made), jax.tree.leaves(plain), strict=True):
        assert_close(np.asarray(mine), np.asarray(theirs), 64, least=1e-5)


def test_the_reference_of_a_whole_program():
    pieces, expected = routes([[0, 1]], 1)
    (made,) = evaluate(module_of(Mesh(x=2), (Axis("x"),), 2), *pieces, devices=2)
    np.testing.assert_array_equal(made, expected)
