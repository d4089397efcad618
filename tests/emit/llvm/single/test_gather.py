"""Gathers, dynamic slices, and other moves: runs of all lengths, clamped places, devices."""

from __future__ import annotations

import numpy as np
import pytest

from tests.emit.llvm.single.lone_nodes import check_alone, lone_kernel, node_of
from weft.emit.llvm.jit.engine import load
from weft.emit.llvm.pool.commands import CommandList
from weft.emit.llvm.single.emit import emit_single_node
from weft.ir.types import DTYPES, Array
from weft.ops.index import Gather, GatherDims
from weft.ops.shape import Reverse
from weft.ops.slicing import Concatenate, DynamicSlice, DynamicUpdateSlice, Pad

RANDOM = np.random.default_rng(0)


def bits(*shape: int, dtype: str = "f32") -> Array:
    """Elements with any bits."""
    held = DTYPES[dtype].numpy
    raw = RANDOM.integers(0, 256, (*shape, held.itemsize)).astype(np.uint8)
    if dtype == "i1":
        return (raw[..., 0] & 1).astype(bool)
    return raw.view(held).reshape(shape)


@pytest.mark.parametrize("dtype", ["f32", "i8", "bf16", "f64", "complex<f64>", "i1"])
@pytest.mark.parametrize("width", [1, 3, 20000])
def test_rows(dtype: str, width: int):
    at = RANDOM.integers(-3, 9, (7, 1)).astype(np.int32)
    op = Gather(GatherDims((1,), (0,), (), (), (0,), 1), (1, width))
    check_alone(op, bits(6, width, dtype=dtype), at, sizes=(2,), masks=(1, 0))


@pytest.mark.parametrize("masks", [(0, 0), (1, 2), (3, 1)])
def test_columns_and_patches(masks: tuple[int, int]):
    x = bits(9, 10, 4)
    at = RANDOM.integers(-3, 12, (50, 1)).astype(np.int64)
    columns = Gather(GatherDims((0, 2), (1,), (), (), (1,), 1), (9, 1, 4))
    check_alone(columns, x, at, sizes=(2, 3), masks=masks)
    pairs = RANDOM.integers(-3, 12, (2, 50)).astype(np.uint8)
    patches = Gather(GatherDims((1, 2, 3), (), (), (), (1, 0), 0), (3, 2, 4))
    check_alone(patches, x, pairs, sizes=(2, 3), masks=masks)


def test_batches():
    x, at = bits(5, 100), RANDOM.integers(-3, 110, (5, 40, 1)).astype(np.int32)
    op = Gather(GatherDims((), (1,), (0,), (0,), (1,), 2), (1, 1))
    check_alone(op, x, at, sizes=(2,), masks=(0, 1))


@pytest.mark.parametrize("start", [-5, 0, 3, 100])
def test_dynamic_slices(start: int):
    x = bits(9, 11, 7)
    starts = (np.int32(start), np.int32(2), np.int32(start))
    check_alone(DynamicSlice((2, 11, 7)), x, *starts)
    masks = (2, 1, 0, 0)
    check_alone(DynamicSlice((3, 5, 7)), x, *starts, sizes=(2, 3), masks=masks)
    check_alone(DynamicUpdateSlice(), x, bits(3, 5, 7), *starts, sizes=(2, 3), masks=(1, *masks))


def test_long_slices_are_cut_into_tasks():
    x, starts = bits(3, 40000), (np.int64(1), np.int64(5))
    check_alone(DynamicSlice((2, 30001)), x, *starts)
    check_alone(DynamicUpdateSlice(), x, bits(2, 30001), *starts)


def test_a_slice_in_place_leaves_the_rest_alone():
    x, new = bits(20, 30), bits(2, 3)
    node = node_of(DynamicUpdateSlice(), x, new, np.int32(4), np.int32(5))
    (loaded,) = load([emit_single_node(lone_kernel(node))])
    expected = x.copy()
    expected[4:6, 5:8] = new
    starts = np.array([4, 5], np.int32)
    places = [starts.ctypes.data, starts.ctypes.data + 4]
    commands = CommandList()
    commands.kernel(loaded, [x.ctypes.data, new.ctypes.data, *places, x.ctypes.data])
    commands.run()
    np.testing.assert_array_equal(x.view(np.uint32), expected.view(np.uint32))


@pytest.mark.parametrize("dim", [0, 1, 2])
def test_concatenations(dim: int):
    parts = [bits(*[n if d == dim else 6 for d in range(3)]) for n in (3, 0, 1, 40)]
    check_alone(Concatenate(dim), *parts, sizes=(2,), masks=(0, 1, 0, 1))


def test_long_concatenations_are_cut_into_tasks():
    check_alone(Concatenate(0), bits(100001), bits(5), bits(70000))


def test_what_the_caches_do_not_hold_is_written_past_them():
    check_alone(Concatenate(0), bits(3), bits((1 << 21) + 77), bits(5))
    check_alone(Concatenate(1), bits(4001, 301), bits(4001, 300))
    rows = RANDOM.integers(0, 50, (4001, 1)).astype(np.int32)
    check_alone(Gather(GatherDims((1,), (0,), (), (), (0,), 1), (1, 601)), bits(50, 601), rows)


def test_elements_of_tensors_with_batches_and_several_indices():
    x, at = bits(5, 30, 20), RANDOM.integers(-3, 33, (5, 70, 2)).astype(np.int32)
    op = Gather(GatherDims((), (1, 2), (0,), (0,), (2, 1), 2), (1, 1, 1))
    check_alone(op, x, at, sizes=(2,), masks=(1, 0))
    for dtype in (np.uint8, np.int64, np.uint64):
        few = RANDOM.integers(0, 40, (2, 300)).astype(dtype)
        pairs = Gather(GatherDims((), (0, 1), (), (), (0, 1), 0), (1, 1))
        check_alone(pairs, x[0], few)


@pytest.mark.parametrize("dims", [(), (0,), (2,), (0, 1, 2)])
def test_reversals(dims: tuple[int, ...]):
    check_alone(Reverse(dims), bits(5, 6, 70), sizes=(2,), masks=(1,))


@pytest.mark.parametrize("dtype", ["f32", "i8", "complex<f64>"])
def test_paddings(dtype: str):
    x, value = bits(5, 6, 7, dtype=dtype), bits(dtype=dtype)
    op = Pad((1, 0, -2), (2, -1, 5), (0, 2, 1))
    check_alone(op, x, value, sizes=(2, 2), masks=(1, 2))
    check_alone(Pad((3,), (0,), (2,)), bits(30000, dtype=dtype), value)
