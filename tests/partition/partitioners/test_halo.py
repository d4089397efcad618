"""Ops whose pieces need their neighbours: any split is right, and only edges are sent."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.partition.differential import check
from tests.partition.partitioners.halo_cases import (
    CASES,
    MESHES,
    Case,
    Dims,
    region,
    scalar,
    shardings,
)
from tests.partition.program import as_told
from weft.capture import parse
from weft.cost.sent import bytes_sent, total_sent
from weft.ir.op import Op
from weft.ir.types import DTYPES, Array, TensorType
from weft.mesh import Axis, DimSharding, Mesh, Sharding
from weft.ops.convolution import Convolution, conv_shape, conv_window, read_conv_dims
from weft.ops.elementwise.pointwise import Add, Compare, Maximum
from weft.ops.shape import Reverse
from weft.ops.slicing import Concatenate, DynamicSlice, Pad, Slice
from weft.ops.window import ReduceWindow, SelectAndScatter


@pytest.mark.parametrize("name", CASES)
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_any_split_gives_what_one_device_gives(name: str, data: st.DataObject) -> None:
    """Whatever is split, and however unevenly, nothing is lost and no padding is read."""
    case = CASES[name](data.draw)
    mesh = data.draw(st.sampled_from(MESHES))
    module = parse(case.module(mesh, shardings(data.draw, case, mesh)).text())
    check(module, case.inputs(), sharded=as_told(module), length=64)


# What is sent

WIDE = 64  # elements of the other dim
ROW = 4 * WIDE  # bytes of an index of the dim that is split


def wide(size: int) -> Array:
    return (np.arange(size * WIDE) % 7 - 3).astype(np.float32).reshape(size, WIDE)


def out(size: int) -> TensorType:
    return TensorType((size, WIDE), DTYPES["f32"])


def of_rows(op: Op, sizes: tuple[int, ...], *others: Array, folds: tuple[Op, ...] = ()) -> Case:
    """An op on matrices of so many rows, and on scalars that are constants."""
    rows = tuple(wide(size) for size in sizes)
    constants = tuple(range(len(rows), len(rows) + len(others)))
    alike: tuple[Dims, ...] = (*[(0, 1)] * len(rows), *[()] * len(others), (0, 1))
    return Case(op, (*rows, *others), alike, tuple(region(f, "f32") for f in folds), constants)


ZERO, LEAST = scalar(0, "f32"), scalar(-np.inf, "f32")
FIRST = scalar(300, "i32"), scalar(0, "i32")
# What 8 devices send, with 128 of 1024 rows each: rows a device sends, and by which collective.
LEAN: dict[str, tuple[Case, str, float]] = {
    "shift": (of_rows(Slice((1, 0), (1024, WIDE), (1, 1)), (1024,)), "permute", 7 / 8),
    "every second row": (of_rows(Slice((0, 0), (1024, WIDE), (2, 1)), (1024,)), "", 0),
    "first half": (of_rows(Slice((0, 0), (512, WIDE), (1, 1)), (1024,)), "permute", 56),
    "pad": (of_rows(Pad((1, 0), (-1, 0), (0, 0)), (1024,), ZERO), "permute", 7 / 8),
    "spread": (of_rows(Pad((0, 0), (1, 0), (1, 0)), (1024,), ZERO), "", 0),
    "reverse": (of_rows(Reverse((0,)), (1024,)), "permute", 128),
    "concatenate": (of_rows(Concatenate(0), (512, 512)), "permute", 112),
    "window": (
        of_rows(
            ReduceWindow((3, 1), (out(1024),), padding=((1, 1), (0, 0))),
            *((1024,), LEAST),
            folds=(Maximum(),),
        ),
        "permute",
        14 / 8,
    ),
    "running sum": (
        of_rows(
            ReduceWindow((1024, 1), (out(1024),), padding=((1023, 0), (0, 0))),
            *((1024,), ZERO),
            folds=(Add(),),
        ),
        "gather",
        7,
    ),
    "pool": (
        of_rows(
            SelectAndScatter((2, 1), out(1024), (2, 1)),
            *((1024, 512), ZERO),
            folds=(Compare("GE", "FLOAT"), Add()),
        ),
        "",
        0,
    ),
    "one row": (of_rows(DynamicSlice((1, WIDE)), (1024,), *FIRST), "all_reduce", 14 / 8),
}


@pytest.mark.parametrize("name", LEAN)
def test_only_edges_are_sent(name: str) -> None:
    """Neighbours send what is missing, and no more."""
    case, kind, rows = LEAN[name]
    mesh = Mesh((("x", 8),))
    told = [
        Sharding("mesh", tuple(DimSharding((Axis("x"),) if n == 0 else ()) for n in dims))
        for dims in case.alike
    ]
    if name == "one row":
        told[-1] = Sharding("mesh", (DimSharding(()), DimSharding(())))
    module = parse(case.module(mesh, told).text())
    sent = bytes_sent(check(module, case.inputs(), sharded=as_told(module), length=64).local)
    assert all(kind in row.name for row in sent)
    assert bool(sent) == bool(kind)
    assert total_sent(sent) == pytest.approx(rows * ROW)


def image(height: int, kernel: int, *, stride: int = 1) -> Case:
    """A convolution of 2 pictures of that height, whose rows may be split."""
    dims = read_conv_dims("[b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f]")
    edges = (((kernel - 1) // 2, kernel // 2),) * 2
    lhs, rhs = (
        TensorType((2, height, 16, 4), DTYPES["f32"]),
        TensorType((kernel, kernel, 4, 8), DTYPES["f32"]),
    )
    window = conv_window("test", rhs, dims, (stride, stride), edges, None, None)
    made = TensorType(conv_shape("test", lhs, rhs, dims, window, 1, 1), DTYPES["f32"])
    arrays = tuple(
        (np.arange(t.size) % 5 - 2).astype(np.float32).reshape(t.sizes) for t in (lhs, rhs)
    )
    op = Convolution(dims, 1, 1, made, (stride, stride), edges)
    return Case(op, arrays, ((0, 1, 2, 3), (5, 6, 3, 4), (0, 1, 2, 4)))


@pytest.mark.parametrize(("kernel", "stride", "rows"), [(3, 1, 2), (5, 1, 4), (3, 2, 1), (2, 2, 0)])
def test_convolutions_exchange_the_rows_that_windows_share(
    kernel: int, stride: int, rows: int
) -> None:
    """Windows that overlap make neighbours send as many rows as they share."""
    mesh, case = Mesh((("x", 8),)), image(64, kernel, stride=stride)
    told = [
        Sharding("mesh", tuple(DimSharding((Axis("x"),) if n == 1 else ()) for n in dims))
        for dims in case.alike
    ]
    module = parse(case.module(mesh, told).text())
    sent = bytes_sent(check(module, case.inputs(), sharded=as_told(module), length=256).local)
    assert all("permute" in row.name for row in sent)
    assert total_sent(sent) == pytest.approx(rows * 2 * 16 * 4 * 4 * 7 / 8)


def test_a_halo_wider_than_pieces_is_had_from_several_neighbours() -> None:
    """Hops are as many as pieces that a window reaches over."""
    case = of_rows(Slice((300, 0), (1024, WIDE), (1, 1)), (1024,))
    mesh = Mesh((("x", 8),))
    told = [Sharding("mesh", (DimSharding((Axis("x"),)), DimSharding(())))] * 2
    module = parse(case.module(mesh, told).text())
    sent = bytes_sent(check(module, case.inputs(), sharded=as_told(module), length=64).local)
    assert all("permute" in row.name for row in sent)
    assert total_sent(sent) < 2 * 128 * ROW
