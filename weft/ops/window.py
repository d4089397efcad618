"""Sliding windows, and the ops that reduce or select over them."""

from __future__ import annotations

import math

import numpy as np

from weft.errors import WeftError
from weft.ir.check import require, tensor_type
from weft.ir.op import Body, Op, RegionCall, op
from weft.ir.rule import Role, Rule, RuleBuilder
from weft.ir.types import BOOL, Array, Dim, Shape, Symbol, TensorType, Type, Types
from weft.ir.work import Work, elements, moved
from weft.ops.reduce import (
    SHORT,
    Arrays,
    check_fold,
    check_results,
    in_types,
    narrow,
    promotable,
    wide,
    with_init,
)
from weft.records import dataclass

PaddingPairs = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class WindowDims:
    """A window over every dim: size, strides, padding, base and window dilation."""

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    padding: PaddingPairs
    base_dilations: tuple[int, ...]  # dilation of the tensor
    window_dilations: tuple[int, ...]  # dilation of the window

    def padded_size(self, dim: int, size: int) -> int:
        """The size of a dim after dilation and padding."""
        # Gaps are between elements only: an empty dim has none.
        dilated = (size - 1) * self.base_dilations[dim] + 1 if size else 0
        return sum(self.padding[dim]) + dilated

    def is_trivial(self, dim: int) -> bool:
        """Whether the window along the dim is trivial: size 1, stride 1 and no padding."""
        return self.sizes[dim] == self.strides[dim] == 1 and self.padding[dim] == (0, 0)

    def count(self, dim: int, size: int) -> int:
        """The number of window positions along a dim of that size."""
        padded = self.padded_size(dim, size)
        own = (self.sizes[dim] - 1) * self.window_dilations[dim] + 1
        return 0 if padded <= 0 or own > padded else (padded - own) // self.strides[dim] + 1

    def shape(self, name: str, shape: Shape) -> Shape:
        """The number of window positions along each dim of a shape."""
        return tuple(self._places(name, dim, size) for dim, size in enumerate(shape))

    def _places(self, name: str, dim: int, size: Dim) -> Dim:
        if not isinstance(size, Symbol):
            return self.count(dim, size)
        require(
            self.is_trivial(dim) and self.base_dilations[dim] == 1,
            f"{name}: a window of {self.sizes[dim]} over dim {dim}, whose size varies",
            "give the dim a size when the program is captured",
        )
        return size


def make_window(
    name: str,
    sizes: tuple[int, ...],
    strides: tuple[int, ...] | None = None,
    padding: PaddingPairs | None = None,
    base_dilations: tuple[int, ...] | None = None,
    window_dilations: tuple[int, ...] | None = None,
) -> WindowDims:
    """A checked window, with defaults for missing attributes."""
    ones = (1,) * len(sizes)
    dims = WindowDims(
        sizes,
        strides if strides is not None else ones,
        padding if padding is not None else ((0, 0),) * len(sizes),
        base_dilations if base_dilations is not None else ones,
        window_dilations if window_dilations is not None else ones,
    )
    for what in ("strides", "padding", "base_dilations", "window_dilations"):
        values = getattr(dims, what)
        require(
            len(values) == len(sizes),
            f"{name}: {len(values)} {what} for a window of {len(sizes)} dims",
            "give one for each dim of the window",
        )
    for what in ("sizes", "strides", "base_dilations", "window_dilations"):
        values = getattr(dims, what)
        require(
            all(value > 0 for value in values),
            f"{name}: {what} of the window are {[*values]}",
            "each must be at least 1",
        )
    return dims


def pad(array: Array, value: Array, window: WindowDims) -> Array:
    """The array dilated and padded with a value; negative padding crops."""
    sizes = [max(0, window.padded_size(dim, size)) for dim, size in enumerate(array.shape)]
    padded = np.full(sizes, value, array.dtype)
    targets, sources = [], []
    for dim, size in enumerate(array.shape):
        places = window.padding[dim][0] + np.arange(size) * window.base_dilations[dim]
        kept = np.flatnonzero((places >= 0) & (places < sizes[dim]))
        sources.append(kept)
        targets.append(places[kept])
    if array.ndim == 0:
        return array
    padded[np.ix_(*targets)] = array[np.ix_(*sources)]
    return padded


def fold_windows(
    body: RegionCall, inits: Arrays, arrays: Arrays, window: WindowDims, places: tuple[int, ...]
) -> Arrays:
    """Reduce each window, in order, from initial values."""
    made = _fold_windows(body, wide(body, inits), wide(body, arrays), window, places)
    return narrow(made, arrays)


def _fold_windows(
    body: RegionCall, inits: Arrays, arrays: Arrays, window: WindowDims, places: tuple[int, ...]
) -> Arrays:
    if math.prod(window.sizes) > SHORT:
        for dim in reversed(range(len(places))):
            arrays = fold_runs(body, arrays, dim, window, places[dim])
        return with_init(body, inits, arrays)
    folded = tuple(np.broadcast_to(init, places) for init in inits)
    for offset in np.ndindex(*window.sizes):
        seen = tuple(
            slice(n * dilation, n * dilation + (count - 1) * stride + 1, stride)
            for n, count, stride, dilation in zip(
                offset, places, window.strides, window.window_dilations, strict=True
            )
        )
        folded = body.each(*folded, *(a[seen] for a in arrays))
    return tuple(np.array(f) for f in folded)


def fold_runs(body: RegionCall, arrays: Arrays, dim: int, window: WindowDims, count: int) -> Arrays:
    """Reduce each window along one dim.

    Runs of doubled length are combined from two neighbouring runs, so that a window of n elements
    needs about log n steps; the order of elements is kept.
    """

    def part(taken: Arrays, places: slice | Array) -> Arrays:
        return tuple(np.moveaxis(np.moveaxis(a, dim, 0)[places], 0, dim) for a in taken)

    # The binary digits of the window's size, lowest first: each that is set adds a run of its
    # length.
    step, left, done, length = window.window_dilations[dim], window.sizes[dim], 0, 1
    starts = np.arange(count) * window.strides[dim]
    runs, folded = arrays, None
    while True:
        if left & 1:
            here = part(runs, starts + done * step)
            folded = here if folded is None else body.each(*folded, *here)
            done += length
        left >>= 1
        if not left:
            assert folded is not None
            return folded
        size = runs[0].shape[dim]
        runs = body.each(
            *part(runs, slice(0, size - length * step)), *part(runs, slice(length * step, size))
        )
        length *= 2


@op("stablehlo.reduce_window")
class ReduceWindow(Op):
    """out[i..] = the reduction of the window at position i.., with the region."""

    window_dimensions: tuple[int, ...]
    outs: Types
    window_strides: tuple[int, ...] | None = None
    base_dilations: tuple[int, ...] | None = None
    window_dilations: tuple[int, ...] | None = None
    padding: PaddingPairs | None = None
    regions = 1

    @property
    def window(self) -> WindowDims:
        """The window with all attributes."""
        return make_window(
            self.name,
            self.window_dimensions,
            self.window_strides,
            self.padding,
            self.base_dilations,
            self.window_dilations,
        )

    def infer(self, *operands: Type, regions: tuple[Body, ...] = ()) -> Types:
        inputs, dtypes = check_fold(self.name, operands, regions)
        require(
            len(self.window_dimensions) == inputs[0].rank,
            f"{self.name}: a window of {len(self.window_dimensions)} dims over {inputs[0]}",
            "give the window one size for each dim",
        )
        shape = self.window.shape(self.name, inputs[0].shape)
        return check_results(self.name, self.outs, tuple(TensorType(shape, d) for d in dtypes))

    def rule(self, *operands: TensorType, regions: tuple[Body, ...] = ()) -> Rule:
        out, window = self.outs[0], self.window
        assert isinstance(out, TensorType)
        count = len(self.outs)
        builder = RuleBuilder(operands, self.outs)
        for dim, size in enumerate(out.bounds):
            role: Role = "pass" if window.is_trivial(dim) else "permutation"
            # Shardy's rule ignores dilation.
            spread = role == "pass" and size != operands[0].bounds[dim]
            places = [dim] * count + [None] * count
            builder.factor(places, [dim] * count, size, role, needs_offset=spread)
        return builder.build()

    def reference(self, *arrays: Array, regions: tuple[RegionCall, ...] = ()) -> Arrays:
        count = len(arrays) // 2
        inits = in_types(arrays[count:], self.outs)
        window, out = self.window, self.outs[0]
        assert isinstance(out, TensorType)
        if out.size == 0:
            return in_types((np.empty(out.sizes),) * count, self.outs)
        given = zip(in_types(arrays[:count], self.outs), inits, strict=True)
        # Padding is the initial value, combined as often as a window meets it, as in StableHLO.
        padded = tuple(pad(array, init, window) for array, init in given)
        return fold_windows(regions[0], inits, padded, window, out.sizes)

    def work(self, operands: Types, results: Types, bodies: tuple[Work, ...] = ()) -> Work:
        each = bodies[0] if bodies else Work(flops=1)
        folds = elements(results[0]) * math.prod(self.window_dimensions)
        return Work(each.flops * folds, each.transcendentals * folds, moved(*operands, *results))


@op("stablehlo.select_and_scatter")
class SelectAndScatter(Op):
    """In each window, select one element; combine the source's element into the result there.

    The first region selects, the second adds.
    """

    window_dimensions: tuple[int, ...]
    out: TensorType
    window_strides: tuple[int, ...] | None = None
    padding: PaddingPairs | None = None
    regions = 2

    @property
    def window(self) -> WindowDims:
        """The window with all attributes."""
        return make_window(self.name, self.window_dimensions, self.window_strides, self.padding)

    def infer(
        self, operand: Type, source: Type, init: Type, *, regions: tuple[Body, ...] = ()
    ) -> Type:
        operand_type, source_type, first = (
            tensor_type(self.name, index, type)
            for index, type in enumerate((operand, source, init))
        )
        require(
            source_type.dtype is operand_type.dtype,
            f"{self.name}: operand 0 is {operand_type}, but operand 1 is {source_type}",
            "their elements must have one type; convert one of them",
        )
        require(
            first.rank == 0 and first.dtype is operand_type.dtype,
            f"{self.name}: operand 2 is {first}",
            f"the initial value must be a {operand_type.with_shape(())}",
        )
        require(
            len(self.window_dimensions) == operand_type.rank,
            f"{self.name}: a window of {len(self.window_dimensions)} dims over {operand_type}",
            "give the window one size for each dim",
        )
        shape = self.window.shape(self.name, operand_type.shape)
        require(
            source_type.shape == shape,
            f"{self.name}: operand 1 is {source_type}, but the window has {[*shape]} places",
            "give one element of the source for each place of the window",
        )
        return self.check_regions(operand_type, regions)

    def check_regions(self, operand: TensorType, regions: tuple[Body, ...]) -> Type:
        """The result type, with the element type of the second region."""
        require(
            len(regions) == 2, f"{self.name}: has {len(regions)} regions", "give select and scatter"
        )
        select, scatter = regions
        element = operand.with_shape(())
        element_type = scatter.results[0] if scatter.results else element
        require(
            select.args == (element, element) and select.results == (TensorType((), BOOL),),
            f"{self.name}: the region that selects takes {[*select.args]}, "
            f"gives {[*select.results]}",
            f"it must take two {element} and give a tensor<i1>",
        )
        if (
            not isinstance(element_type, TensorType)
            or scatter.args != (element_type, element_type)
            or scatter.results != (element_type,)
            or not promotable(element, element_type)
        ):
            raise WeftError(
                f"{self.name}: the region that adds takes {[*scatter.args]}, "
                f"gives {[*scatter.results]}",
                help=f"it must take two {element}, or a wider type, and give one",
            )
        (result,) = check_results(self.name, (self.out,), (operand.with_dtype(element_type.dtype),))
        return result

    def rule(
        self,
        operand: TensorType,
        source: TensorType,
        init: TensorType,
        *,
        regions: tuple[Body, ...] = (),
    ) -> Rule:
        builder = RuleBuilder((operand, source, init), (self.out,))
        for dim, size in enumerate(operand.bounds):
            if self.window.is_trivial(dim):
                builder.factor((dim, dim, None), (dim,), size)
            else:
                builder.factor((None, dim, None), (None,), source.bounds[dim], "whole")
                builder.factor((dim, None, None), (dim,), size, "permutation")
        return builder.build()

    def reference(
        self,
        operand: Array,
        source: Array,
        init: Array,
        *,
        regions: tuple[RegionCall, ...] = (),
    ) -> Array:
        select, scatter = regions
        result = np.full(operand.size, init, self.out.dtype.numpy)
        if source.size and operand.size:
            chosen = self.select(operand, source.shape, select).reshape(-1)
            add_at(result, chosen, source.reshape(-1).astype(result.dtype), scatter)
        return result.reshape(operand.shape)

    def select(self, operand: Array, places: tuple[int, ...], body: RegionCall) -> Array:
        """For each window, the flat index of the selected element; -1 if it is empty."""
        window = self.window
        index = np.full((), 0)
        seen = np.full((), True)
        for dim, (size, count) in enumerate(zip(operand.shape, places, strict=True)):
            start = np.arange(count)[:, None] * window.strides[dim] - window.padding[dim][0]
            at = start + np.arange(window.sizes[dim])
            # positions so far, window so far -> one more of each, windows last
            at = at.reshape([1] * dim + [count] + [1] * dim + [window.sizes[dim]])
            index = np.expand_dims(index, (dim, 2 * dim + 1)) * size + at
            seen = np.expand_dims(seen, (dim, 2 * dim + 1)) & (at >= 0) & (at < size)
        flat = np.where(seen, index, -1).reshape(*places, -1)
        while (count := flat.shape[-1]) > 1:
            left, right = flat[..., 0 : count // 2 * 2 : 2], flat[..., 1::2]
            values = operand.reshape(-1)
            (keep,) = body.each(values[left], values[right])
            # -1, outside of the operand, loses against any element; what it reads, the last one, is
            # ignored.
            winner = np.where((right < 0) | ((left >= 0) & keep.astype(bool)), left, right)
            flat = np.concatenate([winner, flat[..., count // 2 * 2 :]], -1)
        return np.asarray(flat[..., 0])

    def work(self, operands: Types, results: Types, bodies: tuple[Work, ...] = ()) -> Work:
        select, scatter = bodies if len(bodies) == 2 else (Work(flops=1), Work(flops=1))
        places = elements(operands[1])
        seen = places * math.prod(self.window_dimensions)
        return Work(
            select.flops * seen + scatter.flops * places,
            select.transcendentals * seen + scatter.transcendentals * places,
            moved(*operands, *results),
        )


def add_at(result: Array, index: Array, values: Array, body: RegionCall) -> None:
    """Combine each value into the element at its index, in order; -1 is skipped."""
    order = np.argsort(index, kind="stable")
    order = order[index[order] >= 0]
    while order.size:
        # In each round the first value that is left for each index: numpy's assignment through
        # equal indices keeps only one of them.
        first = np.ones(order.size, bool)
        first[1:] = index[order[1:]] != index[order[:-1]]
        now = order[first]
        (result[index[now]],) = body.each(result[index[now]], values[now])
        order = order[~first]


OPS: tuple[type[Op], ...] = (ReduceWindow, SelectAndScatter)
