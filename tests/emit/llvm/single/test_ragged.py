"""Ragged dots: every mode and layout, sizes of groups that are odd, empty or wrong, and devices."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.emit.llvm.single.lone_nodes import check_alone, compiled, lone_kernel, node_of
from weft.emit.llvm.single.emit import refuses_single_node
from weft.ir.types import DTYPES, Array, TensorType
from weft.ops.ragged import RaggedDims, RaggedDot

RANDOM = np.random.default_rng(0)
LAYOUTS = {
    "rows": RaggedDims((), (), (1,), (1,), (0,), (0,)),
    "rows, turned weights": RaggedDims((), (), (1,), (2,), (0,), (0,)),
    "turned rows": RaggedDims((), (), (0,), (1,), (1,), (0,)),
    "groups last": RaggedDims((), (), (1,), (0,), (0,), (2,)),
    "sums": RaggedDims((), (), (1,), (0,), (1,)),
    "turned sums": RaggedDims((), (), (0,), (0,), (0,)),
}


def whole(*shape: int, dtype: str = "f32") -> Array:
    """Small whole numbers, whose sums are exact in any order."""
    return RANDOM.integers(-4, 5, shape).astype(DTYPES[dtype].numpy)


def sides_of(
    layout: str, rows: int, depth: int, columns: int, count: int
) -> tuple[tuple[tuple[int, ...], ...], tuple[int, ...]]:
    """The shapes of both sides, and of the result."""
    sides = {
        "rows": ((rows, depth), (count, depth, columns)),
        "rows, turned weights": ((rows, depth), (count, columns, depth)),
        "turned rows": ((depth, rows), (count, depth, columns)),
        "groups last": ((rows, depth), (depth, columns, count)),
        "sums": ((columns, rows), (rows, depth)),
        "turned sums": ((rows, columns), (rows, depth)),
    }[layout]
    return sides, (count, columns, depth) if "sums" in layout else (rows, columns)


def check(
    layout: str,
    rows: int,
    depth: int,
    columns: int,
    groups: Sequence[int],
    dtype: str = "f32",
    out: str | None = None,
    **how: object,
) -> None:
    """The kernel of a layout against the reference."""
    sides, shape = sides_of(layout, rows, depth, columns, len(groups))
    op = RaggedDot(LAYOUTS[layout], TensorType(shape, DTYPES[out or dtype]))
    arrays = (*[whole(*s, dtype=dtype) for s in sides], np.array(groups, np.int32))
    check_alone(op, *arrays, compare=np.testing.assert_array_equal, **how)  # type: ignore[arg-type]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_layouts(layout: str, dtype: str):
    check(layout, 150, 300, 37, [130, 0, 6, 9], dtype)


@pytest.mark.parametrize("dtypes", [("bf16", "f32"), ("f64", "f64"), ("i32", "i32")])
def test_types(dtypes: tuple[str, str]):
    check("rows", 6, 17, 65, [1, 4], *dtypes)
    check("sums", 6, 17, 65, [1, 4], *dtypes)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_devices(layout: str):
    check(layout, 9, 5, 34, [2, 7], sizes=(2, 3), masks=(1, 2, 3))
    check(layout, 9, 5, 34, [2, 7], sizes=(2, 3), masks=(1, 0, 0))


@settings(max_examples=20)
@given(
    st.sampled_from([*LAYOUTS]),
    st.lists(st.integers(0, 9), min_size=1, max_size=4),
    st.integers(1, 20),
    st.integers(0, 5),
    st.integers(1, 4),
)
def test_any_sizes(layout: str, groups: list[int], rows: int, depth: int, columns: int):
    check(layout, rows, depth, columns, groups)


def test_sizes_may_differ_by_batch():
    rows = RaggedDims((0,), (1,), (2,), (2,), (1,), (0,))
    sizes = np.array([[2, 1, 3], [1, 1, 1]], np.int64)
    op = RaggedDot(rows, TensorType((2, 6, 5), DTYPES["f32"]))
    check_alone(op, whole(2, 6, 4), whole(3, 2, 4, 5), sizes)
    sums = RaggedDims((0,), (0,), (2,), (1,), (2,))
    op = RaggedDot(sums, TensorType((3, 2, 6, 5), DTYPES["f32"]))
    check_alone(op, whole(2, 6, 4), whole(2, 4, 5), sizes)


def test_sizes_that_are_no_sizes_stay_inside():
    op = RaggedDot(LAYOUTS["rows"], TensorType((5, 3), DTYPES["f32"]))
    x, y = np.ones((5, 2), "f"), np.ones((3, 2, 3), "f")
    run = compiled(lone_kernel(node_of(op, x, y, np.zeros(3, np.int64))))
    (made,) = run(x, y, np.array([-7, 2**63 - 1, 4]))
    np.testing.assert_array_equal(made, np.full((5, 3), 2, "f"))


def test_what_is_in_no_group_does_not_matter():
    x, y = np.full((4, 2), np.nan, "f"), np.full((2, 2, 3), np.inf, "f")
    x[0], y[0] = 1, 2
    op = RaggedDot(LAYOUTS["rows"], TensorType((4, 3), DTYPES["f32"]))
    (made,) = compiled(lone_kernel(node_of(op, x, y, np.zeros(2, np.int32))))(
        x, y, np.array([1, 0], np.int32)
    )
    np.testing.assert_array_equal(made, [[4] * 3, [0] * 3, [0] * 3, [0] * 3])


def test_what_is_left_to_numpy():
    def reason(dims: RaggedDims, shapes: Sequence[tuple[int, ...]], *dtypes: str) -> str | None:
        op = RaggedDot(dims, TensorType(shapes[2], DTYPES[dtypes[1]]))
        sides = [np.zeros(s, DTYPES[dtypes[0]].numpy) for s in shapes[:2]]
        return refuses_single_node(lone_kernel(node_of(op, *sides, np.zeros(2, np.int32))))

    small = [(6, 4), (2, 4, 5), (6, 5)]
    assert reason(LAYOUTS["rows"], small, "bf16", "f32") is None
    assert "i8 is added up in i32" in str(reason(LAYOUTS["rows"], small, "i8", "i32"))
    assert "complex" in str(reason(LAYOUTS["rows"], small, "complex<f32>", "complex<f32>"))
    two = RaggedDims((), (), (1, 2), (2, 1), (0,), (0,))
    assert "not one" in str(reason(two, [(6, 4, 3), (2, 3, 4, 5), (6, 5)], "f32", "f32"))
