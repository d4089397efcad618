"""Ragged dots in Triton's interpreter: modes, layouts, types, sizes of groups, and devices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given, settings

import weft
from tests.emit.llvm.single.lone_nodes import lone_kernel, module_of, node_of, stacked
from tests.emit.llvm.single.test_ragged import LAYOUTS, sides_of, whole
from tests.emit.triton.launching import launched
from tests.emit.triton.scatters import experts
from tests.ops.examples.ragged import EXAMPLES
from tests.tolerance import assert_close
from weft.emit.triton.capable import unsupported_kernel
from weft.emit.triton.emit import emitted
from weft.emit.triton.ragged import tiles
from weft.evaluate import evaluate
from weft.ir.types import DTYPES, Array, TensorType
from weft.ops.ragged import RaggedDims, RaggedDot

pytest.importorskip("triton")


@pytest.fixture(autouse=True)
def interpreted(monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")


def check_alone(
    op: RaggedDot, *arrays: Array, sizes: Sequence[int] = (), masks: Sequence[int] = (0, 0, 0),
    device: str = "cpu",
) -> str:  # fmt: skip
    """A launch against the reference, device by device; returns its text."""
    node = node_of(op, *arrays)
    kernel = lone_kernel(node, sizes, masks)
    assert unsupported_kernel(kernel) is None
    stacks = [stacked(a, m, sizes) for a, m in zip(arrays, masks, strict=True)]
    (made,) = launched(kernel, stacks, device)
    for place in np.ndindex(*kernel.devices):
        own = [s[tuple(np.minimum(place, np.array(s.shape[: len(sizes)]) - 1))] for s in stacks]
        (expected,) = evaluate(module_of(node), *own)
        assert_close(made[place], np.asarray(expected), 64)
    return emitted(kernel).text


def check(
    layout: str, rows: int, depth: int, columns: int, groups: Sequence[int], dtype: str = "f32",
    out: str | None = None, **how: Any,
) -> str:  # fmt: skip
    """A ragged dot of small whole numbers in one of the layouts."""
    shapes, made = sides_of(layout, rows, depth, columns, len(groups))
    op = RaggedDot(LAYOUTS[layout], TensorType(made, DTYPES[out or dtype]))
    arrays = [whole(*shape, dtype=dtype) for shape in shapes]
    return check_alone(op, *arrays, np.array(groups, np.int32), **how)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_layouts(layout, dtype):
    check(layout, 150, 70, 37, [130, 0, 6, 9], dtype)


@pytest.mark.parametrize(
    "dtypes",
    [
        ("bf16", "f32"),
        ("f16", "f16"),
        ("f64", "f64"),
        ("i32", "i32"),
        ("i8", "i32"),
        ("ui8", "ui8"),
    ],
)
def test_types(dtypes):
    for layout in ("rows", "sums"):
        check(layout, 6, 17, 65, [1, 4], *dtypes)


@pytest.mark.parametrize("layout", ["rows", "sums"])
def test_devices(layout):
    check(layout, 9, 5, 34, [2, 7], sizes=(2, 3), masks=(1, 2, 3))
    check(layout, 9, 5, 34, [2, 7], sizes=(2, 3), masks=(1, 0, 0))


@pytest.mark.parametrize("layout", ["rows", "turned sums"])
def test_more_groups_than_are_read_at_a_time(layout, monkeypatch):
    monkeypatch.setattr(tiles, "GROUPS", 4)
    check(layout, 40, 3, 5, [3, 0, 1, 9, 0, 0, 2, 20, 1, 0])


@pytest.mark.parametrize("groups", [[0], [0, 0], [5], [2, 9], []])
def test_sizes_at_the_edges(groups):
    for layout in ("rows", "turned sums"):
        check(layout, 5, 3, 4, groups)
    check("rows", 5, 0, 4, groups)
    check("rows", 0, 3, 4, groups)
    check("turned sums", 0, 3, 4, groups)
    check("rows", 5, 3, 0, groups)


@settings(max_examples=25)
@given(EXAMPLES[RaggedDot])
def test_batches_in_any_mode(example):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_INTERPRET", "1")
        check_alone(example.op, *example.arrays)


def test_sizes_that_are_no_sizes_stay_inside():
    op = RaggedDot(LAYOUTS["rows"], TensorType((5, 3), DTYPES["f32"]))
    x, y = np.ones((5, 2), "f"), np.ones((3, 2, 3), "f")
    kernel = lone_kernel(node_of(op, x, y, np.zeros(3, np.int64)))
    (made,) = launched(kernel, [x, y, np.array([-7, 2**63 - 1, 4])], "cpu")
    np.testing.assert_array_equal(made, np.full((5, 3), 2, "f"))


@pytest.mark.parametrize("layout", ["rows", "turned sums"])
def test_what_is_in_no_group_does_not_matter(layout):
    shapes, made = sides_of(layout, 4, 2, 3, 2)
    x, y = np.full(shapes[0], np.nan, "f"), np.full(shapes[1], np.inf, "f")
    x[0], y[0] = 1, 2
    op = RaggedDot(LAYOUTS[layout], TensorType(made, DTYPES["f32"]))
    check_alone(op, x, y, np.array([1, 0], np.int32))


def test_what_is_left_to_numpy():
    two = RaggedDims((), (), (1, 2), (2, 1), (0,), (0,))
    op = RaggedDot(two, TensorType((6, 5), DTYPES["f32"]))
    node = node_of(op, np.zeros((6, 4, 3), "f"), np.zeros((2, 3, 4, 5), "f"), np.zeros(2, np.int32))
    assert "not one" in str(unsupported_kernel(lone_kernel(node)))


def test_gradients_stay_on_the_device():
    rng = np.random.default_rng(0)
    given = [rng.integers(-3, 4, shape).astype("f") for shape in ((20, 7), (3, 7, 5), (20, 5))]
    given.insert(2, np.array([9, 0, 8], "i"))
    compiled = weft.compile(experts, *given, target="triton")
    assert "host" not in compiled.text("tiled")
    for one, other in zip(compiled(*given), jax.jit(experts)(*given), strict=True):
        np.testing.assert_array_equal(one, other)
