"""Ops whose pieces need their neighbours, with random shapes, attributes and shardings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import assume
from hypothesis import strategies as st

from weft.ir.dense import Dense
from weft.ir.module import Function, Module, Region, Value, apply
from weft.ir.op import Op
from weft.ir.types import DTYPES, Array, TensorType
from weft.ir.write import SHARDINGS
from weft.mesh import Axis, DimSharding, Mesh, Sharding
from weft.ops.convolution import ConvDims, Convolution, conv_shape, conv_window
from weft.ops.elementwise.pointwise import Add, Compare, Maximum, Minimum, Multiply
from weft.ops.shape import Constant, Reverse
from weft.ops.slicing import Concatenate, DynamicSlice, DynamicUpdateSlice, Pad, Slice
from weft.ops.window import ReduceWindow, SelectAndScatter, make_window

MESHES = (
    Mesh((("x", 8),)),
    Mesh((("x", 2), ("y", 4))),
    Mesh((("x", 2), ("y", 2), ("z", 2))),
    Mesh((("x", 3), ("y", 2))),
)
Draw = Callable[[Any], Any]
Dims = tuple[int, ...]  # a number for each dim of a tensor: those with the same are split alike


@dataclass(frozen=True)
class Case:
    """An op on arrays; which dims of operands and results are split alike."""

    op: Op
    arrays: tuple[Array, ...]
    alike: tuple[Dims, ...]  # operands, then the result
    regions: tuple[Region, ...] = ()
    constants: tuple[int, ...] = ()  # operands that are constants
    cuts: tuple[tuple[int, Slice], ...] = ()  # operands, if they are slices of arrays

    def module(self, mesh: Mesh, splits: Sequence[Sharding]) -> Module:
        """The op on arguments that are split so, every sharding told."""
        args, nodes, operands = [], [], []
        table: dict[Value, object] = {}
        for n, array in enumerate(self.arrays):
            if n in self.constants:
                nodes.append(apply(Constant(Dense(array))))
                operands.append(nodes[-1].results[0])
                continue
            type = TensorType(array.shape, _dtype(array))
            args.append(Value(type, None, len(args)))
            operands.append(args[-1])
            table[args[-1]] = splits[n]
        if self.cuts:
            nodes += [apply(cut, operands[n]) for n, cut in self.cuts]
            operands = [node.results[0] for node in nodes]
        made = apply(self.op, *operands, regions=self.regions)
        nodes.append(made)
        table.update(dict.fromkeys(made.results, splits[-1]))
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
    starts = tuple(min(n, draw(st.integers(0, 5))) for n in size)
    limits = tuple(
        max(s, n - draw(st.sampled_from([0, 1, 7]))) for s, n in zip(starts, size, strict=True)
    )
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


def joins(draw: Draw) -> Case:
    """Slices of one or two arrays, one behind the other; a roll is one of them."""
    size, dtype = shape(draw), dtypes(draw)
    dim = draw(st.integers(0, len(size) - 1))
    sizes = [draw(st.integers(1, 20)) for _ in range(draw(st.integers(1, 2)))]
    arrays = [array(draw, (*size[:dim], n, *size[dim + 1 :]), dtype) for n in sizes]
    middle = draw(st.integers(0, sizes[0]))
    spans = [(0, middle, sizes[0]), (0, 0, middle)]
    for _ in range(draw(st.integers(0, 2))):
        n = draw(st.integers(0, len(sizes) - 1))
        start = draw(st.integers(0, sizes[n]))
        spans.append((n, start, draw(st.integers(start, sizes[n]))))
    cuts = []
    for n, start, limit in spans:
        starts, limits = [0] * len(size), [*arrays[n].shape]
        starts[dim], limits[dim] = start, limit
        cuts.append((n, Slice(tuple(starts), tuple(limits), (1,) * len(size))))
    alike = (same(len(size)),) * (len(arrays) + 1)
    return Case(Concatenate(dim), tuple(arrays), alike, cuts=tuple(cuts))


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
    assume(all(made.padded_size(d, n) >= 0 for d, n in enumerate(size)))
    name = draw(st.sampled_from(["sum", "max", "min"]))
    fold, init = FOLDS[name]
    out = TensorType(made.shape("test", size), DTYPES[dtype])
    op = ReduceWindow(
        made.sizes, (out,), made.strides, made.base_dilations, made.window_dilations, made.padding
    )
    arrays = (array(draw, size, dtype), scalar(init, dtype))
    constants = (1,) if draw(st.booleans()) else ()
    return Case(op, arrays, (same(rank), (), same(rank)), (region(fold, dtype),), constants)


EXTREMES = {"f32": (-np.inf, np.inf), "i32": (-(2**31), 2**31 - 1)}


def cumulatives(draw: Draw) -> Case:
    size, dtype = shape(draw, 1), draw(st.sampled_from(["f32", "i32"]))
    rank, dim = len(size), draw(st.integers(0, len(size) - 1))
    sizes, padding = [1] * rank, [(0, 0)] * rank
    sizes[dim] = size[dim]
    padding[dim] = draw(st.sampled_from([(size[dim] - 1, 0), (0, size[dim] - 1)]))
    name = draw(st.sampled_from(sorted(FOLDS)))
    fold, nothing = FOLDS[name]
    if name in ("max", "min"):
        nothing = EXTREMES[dtype][name == "min"]
    init = draw(st.sampled_from([nothing, nothing, nothing, 2]))
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
    assume(all(seen.padded_size(d, n) >= 0 for d, n in enumerate(room)))
    out = TensorType(conv_shape("test", left, right, dims, seen, features, batches), DTYPES[dtype])
    reversal = tuple(draw(st.booleans()) for _ in range(spatial))
    op = Convolution(dims, features, batches, out, *given, reversal)
    # Batch, features and places are one numbering; the kernel's own features go with the output's.
    space = tuple(range(2, spatial + 2))
    alike = (
        placed((0, 1, *space), dims.input),
        placed((1, 9, *space), dims.kernel),
        placed((0, 9, *space), dims.output),
    )
    return Case(op, (array(draw, lhs, dtype), array(draw, rhs, dtype)), alike)


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
        joins,
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
    numbers = sorted({n for dims in case.alike for n in dims})
    usual = split(draw, mesh, numbers)
    made = []
    for dims in case.alike:
        axes = usual if draw(st.integers(0, 3)) else split(draw, mesh, numbers)
        made.append(Sharding("mesh", tuple(DimSharding(axes.get(n, ())) for n in dims)))
    return made


def split(draw: Draw, mesh: Mesh, numbers: list[int]) -> dict[int | None, tuple[Axis, ...]]:
    """Each axis, or its two halves, for some dim or none."""
    found: dict[int | None, tuple[Axis, ...]] = {}
    for name, size in draw(st.permutations(mesh.axes)):
        parts = [Axis(name)]
        if size % 4 == 0 and draw(st.booleans()):
            parts = [Axis(name, 1, 2), Axis(name, 2, size // 2)]
        places = [draw(st.sampled_from([*numbers, None])) for _ in parts]
        if len(set(places)) < len(places):
            parts = [Axis(name)]
        for number, part in zip(places, parts, strict=False):
            found[number] = (*found.get(number, ()), part)
    return found | {None: ()}
