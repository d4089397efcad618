"""Scatter: combiners in order, duplicates, windows that overlap, results in the inputs' memory."""

from __future__ import annotations

import numpy as np
import pytest

from tests.emit.llvm.single.lone_nodes import (
    check_alone,
    combiner,
    lone_kernel,
    node_of,
    scalar_region,
)
from weft.emit.llvm.jit.engine import load
from weft.emit.llvm.pool.commands import CommandList
from weft.emit.llvm.single import scatter_parts
from weft.emit.llvm.single.emit import emit_single_node
from weft.errors import Unsupported
from weft.ir.module import Region, apply
from weft.ir.op import Op
from weft.ir.types import DTYPES, F32, F64, I32, Array, TensorType, type_of
from weft.ops.elementwise.pointwise import Add, Maximum, Minimum, Multiply, Subtract
from weft.ops.scatter import Scatter, ScatterDims
from weft.ops.slicing import DynamicUpdateSlice

ROWS = ScatterDims((1,), (0,), (), (), (0,), 1)
RANDOM = np.random.default_rng(0)


def rows(count: int, room: int) -> Array:
    """Indices of rows, some twice, some outside."""
    return RANDOM.integers(-2, room + 2, (count, 1)).astype(np.int32)


def floats(*shape: int, dtype: str = "f32") -> Array:
    return RANDOM.standard_normal(shape).astype(DTYPES[dtype].numpy)


@pytest.mark.parametrize("op", [Add, Multiply, Maximum, Minimum, Subtract])
@pytest.mark.parametrize("width", [1, 15, 16, 70, 600])
def test_rows(op: type[Op], width: int):
    x, at, new = floats(10, width), rows(23, 10), floats(23, width)
    dims = Scatter(ROWS, (type_of(x),))
    check_alone(dims, x, at, new, regions=(combiner(op(), F32),), sizes=(2,), masks=(1, 0, 1))


@pytest.mark.parametrize("name", ["bf16", "f16", "f64", "i8", "complex<f32>"])
def test_types(name: str):
    dtype = DTYPES[name]
    x, new = (RANDOM.integers(-3, 4, shape).astype(dtype.numpy) for shape in ((7, 37), (20, 37)))
    check_alone(
        Scatter(ROWS, (type_of(x),)), x, rows(20, 7), new, regions=(combiner(Add(), dtype),)
    )


@pytest.mark.parametrize("window", [(1, 2), (0, 2), (0, 1)])
def test_windows_that_overlap_are_combined_in_order(window: tuple[int, int]):
    """Each update dim may be the one that counts rows."""
    x, at = floats(9, 50), RANDOM.integers(-4, 50, (11, 2)).astype(np.int64)
    shape = [3, 20]
    shape.insert(({0, 1, 2} - {*window}).pop(), 11)
    op = Scatter(ScatterDims(window, (), (), (), (0, 1), 1), (type_of(x),))
    check_alone(op, x, at, floats(*shape), regions=(combiner(Subtract(), F32),))


def test_far_away_indices_do_not_wrap_around():
    ends = [np.iinfo(np.int64).min, np.iinfo(np.int64).max, 3]
    at = np.array([ends, ends[::-1]], np.int64).T.copy()
    op = Scatter(ScatterDims((1, 2), (), (), (), (0, 1), 1), (TensorType((9, 50), F32),))
    check_alone(op, floats(9, 50), at, floats(3, 2, 20), regions=(combiner(Add(), F32),))


def test_batches_and_several_inputs():
    """One region of two inputs, the second of which takes the first one's update."""
    x, y = floats(6, 40), RANDOM.integers(-9, 9, (6, 40), np.int32)
    at = RANDOM.integers(-2, 42, (6, 25, 1)).astype(np.int32)
    new, other = floats(6, 25), RANDOM.integers(-9, 9, (6, 25), np.int32)
    both = scalar_region(
        lambda a, b, c, d: [apply(Subtract(), a, c), apply(Maximum(), b, d)], F32, I32, F32, I32
    )
    region = Region(both.args, both.nodes, tuple(n.results[0] for n in both.nodes))
    op = Scatter(ScatterDims((), (1,), (0,), (0,), (1,), 2), (type_of(x), type_of(y)))
    check_alone(op, x, y, at, new, other, regions=(region,), sizes=(2,), masks=(0, 1, 0, 1, 0))


def test_results_in_the_memory_of_the_inputs():
    x, at, new = floats(10, 70), rows(23, 10), floats(23, 70)
    node = node_of(Scatter(ROWS, (type_of(x),)), x, at, new, regions=(combiner(Add(), F32),))
    kernel = lone_kernel(node)
    assert kernel.in_place == ((0, 3),)
    (loaded,) = load([emit_single_node(kernel)])
    expected = x.copy()
    for row, update in zip(at[:, 0], new, strict=True):
        if 0 <= row < 10:
            expected[row] += update
    commands = CommandList()
    commands.kernel(loaded, [a.ctypes.data for a in (x, at, new, x)])
    commands.run()
    np.testing.assert_array_equal(x, expected)


def test_operands_that_devices_share_are_not_written_to():
    x = floats(10, 70)
    op = DynamicUpdateSlice()
    node = node_of(op, x, floats(2, 3), np.int32(1), np.int32(2))
    assert lone_kernel(node, (2,), (1, 0, 0, 0)).in_place == ((0, 4),)
    assert lone_kernel(node, (2,), (0, 1, 0, 0)).in_place == ()


def test_wider_results_are_refused():
    x, at, new = floats(4, 3), rows(5, 4), floats(5, 3)
    wide = combiner(Add(), F64)
    op = Scatter(ROWS, (TensorType((4, 3), F64),))
    with pytest.raises(Unsupported, match="wider type"):
        emit_single_node(lone_kernel(node_of(op, x, at, new, regions=(wide,))))


@pytest.mark.parametrize("op", [Add, Maximum, Minimum, Multiply, Subtract])
@pytest.mark.parametrize("name", ["f32", "f64", "i32", "bf16"])
def test_many_updates_of_few_elements(op: type[Op], name: str, monkeypatch: pytest.MonkeyPatch):
    """Parts have tables of their own, which are combined in order; others are as ever."""
    monkeypatch.setattr(scatter_parts, "thread_count", lambda: 8)
    held = DTYPES[name].numpy
    x = RANDOM.integers(-9, 9, (10, 15)).astype(held)
    new = RANDOM.integers(-1, 2 if op is Multiply else 9, (1101, 15)).astype(held)
    if op is Multiply:
        new = np.where(new == 0, 1, new).astype(held)
    node = Scatter(ROWS, (type_of(x),)), x, rows(1101, 10), new
    region = combiner(op(), DTYPES[name])
    parts = scatter_parts.part_count(lone_kernel(node_of(*node, regions=(region,))))
    assert parts == (1 if op is Subtract or name == "bf16" else 4)
    if name != "bf16":
        check_alone(*node, regions=(region,))


def test_parts_keep_negative_zeros_and_nans(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(scatter_parts, "thread_count", lambda: 16)
    x, new = np.full((3, 1), -0.0, np.float32), np.full((9000, 1), -0.0, np.float32)
    new[17] = np.nan
    at = np.where(np.arange(9000) == 17, 2, np.arange(9000) % 2)[:, None].astype(np.int32)
    op = Scatter(ROWS, (type_of(x),))
    check_alone(op, x, at, new, regions=(combiner(Add(), F32),))
