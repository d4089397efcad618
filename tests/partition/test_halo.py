"""Ops whose pieces need their neighbours: random shapes, attributes, meshes and shardings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from tests.partition.differential import check
from tests.partition.program import as_told
from weft.capture import parse
from weft.cost.sent import bytes_sent, total_sent
from weft.errors import WeftError
from weft.ir.dense import Dense
from weft.ir.module import Function, Module, Node, Region, Value, apply
from weft.ir.op import Op
from weft.ir.types import DTYPES, Array, TensorType
from weft.ir.write import SHARDINGS
from weft.mesh import Axis, DimSharding, Mesh, Sharding
from weft.ops.convolution import ConvDims, Convolution, conv_shape, conv_window
from weft.ops.pointwise import Add, Compare, Maximum, Minimum, Multiply
from weft.ops.shape import Constant, Reverse
from weft.ops.slicing import Concatenate, DynamicSlice, DynamicUpdateSlice, Pad, Slice
from weft.ops.window import ReduceWindow, SelectAndScatter, make_window
from weft.partition import partition

MESHES = (
    Mesh((("x", 8),)),
    Mesh((("x", 2), ("y", 4))),
    Mesh((("x", 2), ("y", 2), ("z", 2))),
    Mesh((("x", 3), ("y", 2))),
)
Draw = Callable[[Any], Any]
Dims = tuple[
    int | None, ...
]  # for each dim of a tensor the number of a dim that it goes along with


@dataclass(frozen=True)
class Case:
    """An op on arrays; which dims of operands and results are split alike."""

    op: Op
    arrays: tuple[Array, ...]
    alike: tuple[Dims, ...]  # operands, then the result
    regions: tuple[Region, ...] = ()
    constants: tuple[int, ...] = ()  # operands that are constants

    def module(self, mesh: Mesh, splits: Sequence[Sharding]) -> Module:
        """The op on arguments that are split so, every sharding told."""
        args, nodes, operands, arrays = [], [], [], []
        table: dict[Value, object] = {}
        for n, array in enumerate(self.arrays):
            if n in self.constants:
                nodes.append(apply(Constant(Dense(array))))
                operands.append(nodes[-1].results[0])
                continue
            type = TensorType(array.shape, _dtype(array))
            args.append(Value(type, None, len(args)))
            operands.append(args[-1])
            arrays.append(array)
            table[args[-1]] = splits[n]
        made = apply(self.op, *operands, regions=self.regions)
        nodes.append(made)
        table.update({v: splits[-1] for v in made.results})
        attrs = tuple((("sdy.sharding", str(splits[-1])),) for _ in made.results)
        main = Function("main", Region(tuple(args), nodes, made.results), res_attrs=attrs)
        return Module({"main": main}, meshes={"mesh": mesh}, tables={SHARDINGS: table})

    def inputs(self) -> tuple[Array, ...]:
        """The arrays that are arguments."""
        return tuple(a for n, a in enumerate(self.arrays) if n not in self.constants)


def _dtype(array: Array) -> Any:
    return next(d for d in DTYPES.values() if d.numpy == array.dtype)


def array(draw: Draw, shape: tuple[int, ...], dtype: str) -> Array:
    """Small whole numbers, so that sums are exact in every type."""
    rng = np.random.default_rng(draw(st.integers(0, 2**20)))
    return rng.integers(-3, 4, shape).astype(DTYPES[dtype].numpy)


def scalar(value: float, dtype: str) -> Array:
    return np.asarray(value).astype(DTYPES[dtype].numpy)


def dtypes(draw: Draw) -> str:
    return str(draw(st.sampled_from(["f32", "bf16", "i32"])))


def shape(draw: Draw, low: int = 0, high: int = 20, rank: int | None = None) -> tuple[int, ...]:
    count = rank or draw(st.integers(1, 3))
    return tuple(draw(st.lists(st.integers(low, high), min_size=count, max_size=count)))


def same(rank: int) -> Dims:
    return tuple(range(rank))


def region(op: Op, dtype: str) -> Region:
    """A region of two scalars."""
    type = TensorType((), DTYPES[dtype])
    args = (Value(type, None, 0), Value(type, None, 1))
    node = apply(op, *args)
    return Region(args, [node], node.results)


# Cases


def slices(draw: Draw) -> Case:
    size = shape(draw)
    starts = tuple(draw(st.integers(0, n)) for n in size)
    limits = tuple(draw(st.integers(s, n)) for s, n in zip(starts, size, strict=True))
    strides = tuple(draw(st.sampled_from([1, 1, 2, 3, 5])) for _ in size)
    op = Slice(starts, limits, strides)
    return Case(op, (array(draw, size, dtypes(draw)),), (same(len(size)),) * 2)


def pads(draw: Draw) -> Case:
    size, dtype = shape(draw), dtypes(draw)
    low, high, interior = [], [], []
    for n in size:
        inner = draw(st.sampled_from([0, 0, 1, 2]))
        full = n + max(n - 1, 0) * inner
        low.append(draw(st.integers(-min(full, 6), 9)))
        high.append(
            draw(st.integers(max(-full - low[-1], -6) if low[-1] < 0 else -min(full, 6), 9))
        )
        interior.append(inner)
    op = Pad(tuple(low), tuple(high), tuple(interior))
    fill = scalar(draw(st.sampled_from([0, 7])), dtype)
    constants = (1,) if draw(st.booleans()) else ()
    return Case(
        op, (array(draw, size, dtype), fill), (same(len(size)), (), same(len(size))), (), constants
    )


def reverses(draw: Draw) -> Case:
    size = shape(draw)
    dims = tuple(sorted(draw(st.sets(st.integers(0, len(size) - 1)))))
    return Case(Reverse(dims), (array(draw, size, dtypes(draw)),), (same(len(size)),) * 2)


def concatenates(draw: Draw) -> Case:
    size, dtype = shape(draw), dtypes(draw)
    dim = draw(st.integers(0, len(size) - 1))
    count = draw(st.integers(1, 4))
    arrays = []
    for _ in range(count):
        own = (*size[:dim], draw(st.integers(0, 20)), *size[dim + 1 :])
        arrays.append(array(draw, own, dtype))
    return Case(Concatenate(dim), tuple(arrays), (same(len(size)),) * (count + 1))


def dynamic_slices(draw: Draw) -> Case:
    size, dtype = shape(draw), dtypes(draw)
    sizes = tuple(draw(st.one_of(st.just(n), st.integers(0, n), st.just(min(n, 1)))) for n in size)
    index = draw(st.sampled_from(["i32", "i64", "ui8", "i8"]))
    starts = [scalar(draw(st.integers(0 if index == "ui8" else -3, 25)), index) for _ in size]
    alike: tuple[Dims, ...] = (same(len(size)), *[()] * len(size), same(len(size)))
    return Case(DynamicSlice(sizes), (array(draw, size, dtype), *starts), alike)


def updates(draw: Draw) -> Case:
    size, dtype = shape(draw), dtypes(draw)
    sizes = tuple(draw(st.one_of(st.just(n), st.integers(0, n), st.just(min(n, 1)))) for n in size)
    index = draw(st.sampled_from(["i32", "i64", "ui8", "i8"]))
    starts = [scalar(draw(st.integers(0 if index == "ui8" else -3, 25)), index) for _ in size]
    dims = same(len(size))
    arrays = (array(draw, size, dtype), array(draw, sizes, dtype), *starts)
    return Case(DynamicUpdateSlice(), arrays, (dims, dims, *[()] * len(size), dims))


def window_of(draw: Draw, rank: int, *, is_plain: bool = False) -> dict[str, tuple[Any, ...]]:
    def each(*choices: int) -> tuple[int, ...]:
        return tuple(draw(st.sampled_from(choices)) for _ in range(rank))

    return {
        "sizes": each(1, 2, 3, 5),
        "strides": each(1, 1, 2, 3),
        "padding": tuple(
            (draw(st.integers(0 if is_plain else -1, 4)), draw(st.integers(0, 4)))
            for _ in range(rank)
        ),
        "base_dilations": each(*((1,) if is_plain else (1, 1, 2, 3))),
        "window_dilations": each(*((1,) if is_plain else (1, 1, 2))),
    }


FOLDS: dict[str, tuple[Op, float]] = {
    "sum": (Add(), 0),
    "max": (Maximum(), -100),
    "min": (Minimum(), 100),
    "prod": (Multiply(), 1),
}


def windows(draw: Draw) -> Case:
    size, dtype = shape(draw), dtypes(draw)
    rank = len(size)
    window = window_of(draw, rank)
    made = make_window("test", *window.values())
    assume(all(made.spread(d, n) >= 0 for d, n in enumerate(size)))
    name = draw(st.sampled_from(["sum", "max", "min"]))
    fold, init = FOLDS[name]
    out = TensorType(made.shape("test", size), DTYPES[dtype])
    op = ReduceWindow(
        made.sizes, (out,), made.strides, made.base_dilations, made.window_dilations, made.padding
    )
    arrays = (array(draw, size, dtype), scalar(init, dtype))
    constants = (1,) if draw(st.booleans()) else ()
    return Case(op, arrays, (same(rank), (), same(rank)), (region(fold, dtype),), constants)


def cumulatives(draw: Draw) -> Case:
    size, dtype = shape(draw, 1), draw(st.sampled_from(["f32", "i32"]))
    rank, dim = len(size), draw(st.integers(0, len(size) - 1))
    sizes, padding = [1] * rank, [(0, 0)] * rank
    sizes[dim] = size[dim]
    padding[dim] = draw(st.sampled_from([(size[dim] - 1, 0), (0, size[dim] - 1)]))
    name = draw(st.sampled_from(sorted(FOLDS)))
    fold, init = FOLDS[name]
    if name in ("max", "min"):
        info = -np.inf if dtype == "f32" else np.iinfo(np.int32).min
        init = info if name == "max" else -info if dtype == "f32" else np.iinfo(np.int32).max
    init = draw(st.sampled_from([init, init, init, 2]))
    type = TensorType(size, DTYPES[dtype])
    op = ReduceWindow(tuple(sizes), (type,), padding=tuple(padding))
    values = array(draw, size, dtype)
    if name == "prod":
        values = np.where(values < 0, -1, 1).astype(values.dtype)
    return Case(
        op,
        (values, scalar(init, dtype)),
        (same(rank), (), same(rank)),
        (region(fold, dtype),),
        (1,),
    )


def pools(draw: Draw) -> Case:
    size, dtype = shape(draw, 1, 16, draw(st.integers(1, 2))), draw(st.sampled_from(["f32", "i32"]))
    rank = len(size)
    made = make_window("test", *window_of(draw, rank, is_plain=True).values())
    source = made.shape("test", size)
    type = TensorType(size, DTYPES[dtype])
    op = SelectAndScatter(made.sizes, type, made.strides, made.padding)
    way = draw(st.sampled_from(["GE", "GT", "LE", "NE"]))
    regions = (
        region(Compare(way, "FLOAT" if dtype == "f32" else "SIGNED"), dtype),
        region(Add(), dtype),
    )
    arrays = (
        array(draw, size, dtype),
        array(draw, source, dtype),
        scalar(draw(st.sampled_from([0, 2])), dtype),
    )
    return Case(op, arrays, (same(rank), same(rank), (), same(rank)), regions)


def convolutions(draw: Draw) -> Case:
    spatial = draw(st.integers(1, 2))
    features, batches = draw(
        st.sampled_from([(1, 1), (1, 1), (1, 1), (2, 1), (4, 1), (1, 2), (1, 4)])
    )
    depth, made, batch = (draw(st.integers(1, 4)) for _ in range(3))
    orders = [tuple(draw(st.permutations(range(spatial + 2)))) for _ in range(3)]
    dims = ConvDims(*(part for o in orders for part in (o[0], o[1], o[2:])))
    room = shape(draw, 0, 16, spatial)
    window = window_of(draw, spatial)
    if draw(st.booleans()):  # a long kernel, as in the gradient of one
        window["sizes"] = tuple(draw(st.integers(1, max(n, 1))) for n in room)
    lhs = placed((batch * batches, depth * features, *room), dims.input)
    rhs = placed((depth, made * features * batches, *window["sizes"]), dims.kernel)
    dtype = dtypes(draw)
    left, right = (TensorType(s, DTYPES[dtype]) for s in (lhs, rhs))
    given = (
        window["strides"],
        window["padding"],
        window["base_dilations"],
        window["window_dilations"],
    )
    seen = conv_window("test", right, dims, *given)
    assume(all(seen.spread(d, n) >= 0 for d, n in enumerate(room)))
    out = TensorType(conv_shape("test", left, right, dims, seen, features, batches), DTYPES[dtype])
    reversal = tuple(draw(st.booleans()) for _ in range(spatial))
    op = Convolution(dims, features, batches, out, *given, reversal)
    alike: list[Dims] = [tuple(np.argsort(o)) for o in (dims.input, dims.kernel, dims.output)]
    goes = (0, 1, *(n + 2 for n in range(spatial)))
    # The kernel's dims go along with the input's features and space, its other with the output's.
    kernel = {0: 1, 1: 9, **{n + 2: n + 2 for n in range(spatial)}}
    result = {0: 0, 1: 9, **{n + 2: n + 2 for n in range(spatial)}}
    del goes
    dims_of = (alike[0], tuple(kernel[d] for d in alike[1]), tuple(result[d] for d in alike[2]))  # type: ignore[index]
    return Case(op, (array(draw, lhs, dtype), array(draw, rhs, dtype)), dims_of)


def placed(sizes: tuple[int, ...], dims: tuple[int, ...]) -> tuple[int, ...]:
    """Sizes in the order that dims say."""
    return tuple(n for _, n in sorted(zip(dims, sizes, strict=True)))


CASES = {
    f.__name__: f
    for f in (
        slices,
        pads,
        reverses,
        concatenates,
        dynamic_slices,
        updates,
        windows,
        cumulatives,
        pools,
        convolutions,
    )
}


# Shardings


def shardings(draw: Draw, case: Case, mesh: Mesh) -> list[Sharding]:
    """One way to split dims that go together, or now and then another one."""
    numbers = sorted({n for dims in case.alike for n in dims if n is not None})
    usual = split(draw, mesh, numbers)
    made = []
    for dims in case.alike:
        axes = usual if draw(st.integers(0, 3)) else split(draw, mesh, numbers)
        given: list[tuple[Axis, ...]] = []
        for n in dims:
            given.append(axes.get(n, ()) if n is not None else ())
        made.append(Sharding("mesh", tuple(DimSharding(a) for a in given)))
    return made


def split(draw: Draw, mesh: Mesh, numbers: list[int]) -> dict[int | None, tuple[Axis, ...]]:
    """Each axis, or both halves of it, for some dim or none."""
    found: dict[int | None, tuple[Axis, ...]] = {}
    for name, size in draw(st.permutations(mesh.axes)):
        parts = [Axis(name)]
        if size % 4 == 0 and draw(st.booleans()):
            parts = [Axis(name, 1, 2), Axis(name, 2, size // 2)]
        for part in parts:
            number = draw(st.sampled_from([*numbers, None])) if numbers else None
            if number is not None:
                merged = (
                    len(parts) == 2
                    and found.get(number, ())[-1:] == (parts[0],)
                    and part is parts[1]
                )
                found[number] = (
                    (*found.get(number, ())[:-1], Axis(name))
                    if merged
                    else (*found.get(number, ()), part)
                )
    return found


@pytest.mark.parametrize("name", CASES)
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_any_split_gives_what_one_device_gives(name: str, data: st.DataObject) -> None:
    """Whatever is split, and however unevenly, nothing is lost and no padding is read."""
    case = CASES[name](data.draw)
    mesh = data.draw(st.sampled_from(MESHES))
    module = parse(case.module(mesh, shardings(data.draw, case, mesh)).text())
    check(module, case.inputs(), sharded=as_told(module), length=64)
