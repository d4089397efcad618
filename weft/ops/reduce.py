"""Reductions with a region, and the scan, which keeps the partial results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, TypeAlias

import numpy as np

from weft.errors import WeftError
from weft.ir.attrs import Codec
from weft.ir.check import dims_in_range, require, tensor_type
from weft.ir.op import Body, Op, RegionCall, op
from weft.ir.rule import Rule, RuleBuilder
from weft.ir.types import Array, Dim, DType, TensorType, Type, Types, dtype_of
from weft.ir.work import Work, elements, moved
from weft.ops.combiners import combine_of
from weft.ops.numerics.arithmetic import fit, widen

Arrays: TypeAlias = tuple[Array, ...]

# Combiners that return one of their operands.
_CHOOSE = ("stablehlo.maximum", "stablehlo.minimum")


def promotable(small: TensorType, large: TensorType) -> bool:
    """Whether one element type may be reduced in another: same kind, no fewer bits."""
    kinds = {"bool": "integer", "int": "integer", "uint": "integer"}
    a, b = small.dtype, large.dtype
    # Booleans and integers of either sign count as one kind, as in StableHLO's promotion rules.
    return kinds.get(a.kind, a.kind) == kinds.get(b.kind, b.kind) and a.bits <= b.bits


def check_fold(
    name: str, operands: Types, regions: tuple[Body, ...]
) -> tuple[tuple[TensorType, ...], tuple[DType, ...]]:
    """The checked inputs of a reduction, and the element types that it accumulates in."""
    types = tuple(tensor_type(name, index, type) for index, type in enumerate(operands))
    count = len(types) // 2
    require(
        count > 0 and len(types) == 2 * count,
        f"{name}: {len(types)} operands",
        "give one initial value for each input, and at least one input",
    )
    for index, type in enumerate(types[:count]):
        require(
            type.shape == types[0].shape,
            f"{name}: operand 0 is {types[0]}, but operand {index} is {type}",
            "the inputs must have one shape; broadcast or reshape one of them",
        )
    for index, type in enumerate(types[count:], count):
        require(
            type.rank == 0, f"{name}: operand {index} is {type}", "an initial value is a scalar"
        )
    return types[:count], _region_types(name, types, regions)


def _region_types(
    name: str, types: tuple[TensorType, ...], regions: tuple[Body, ...]
) -> tuple[DType, ...]:
    count = len(types) // 2
    require(len(regions) == 1, f"{name}: has {len(regions)} regions", "give it one region")
    (body,) = regions
    dtypes: list[DType] = []
    for index, result in enumerate(body.results[:count]):
        ok = (
            isinstance(result, TensorType)
            and result.rank == 0
            and body.args[index : index + 1] == (result,)
            and body.args[index + count : index + count + 1] == (result,)
            and promotable(types[index], result)
            and promotable(types[index + count], result)
        )
        if not ok or not isinstance(result, TensorType):
            raise WeftError(
                f"{name}: input {index} is {types[index]}, its initial value "
                f"{types[index + count]}, but the region gives {result}",
                help="the region must take and give scalars of that element type, or a wider one",
            )
        dtypes.append(result.dtype)
    require(
        len(body.args) == 2 * count and len(body.results) == count,
        f"{name}: the region takes {len(body.args)} values and gives {len(body.results)}",
        f"for {count} inputs it must take {2 * count} and give {count}",
    )
    return tuple(dtypes)


def check_results(name: str, outs: Types, expected: tuple[TensorType, ...]) -> Types:
    """The declared result types, which must be the expected ones."""
    require(
        outs == expected,
        f"{name}: the results are {[*outs]}, but {[*expected]} follow from the operands",
        "correct the types of the results",
    )
    return outs


def in_types(arrays: Sequence[Array], types: Types) -> Arrays:
    """Arrays converted to the element types of these tensors."""
    return tuple(
        a.astype(t.dtype.numpy, copy=False)
        for a, t in zip(arrays, types, strict=True)
        if isinstance(t, TensorType)
    )


# Reductions of up to this many elements go one by one from the initial value, as the
# specification writes them, so that they round like other implementations that follow it; longer
# ones go as a tree.
SHORT = 64


# Combiners that f64 computes without a rounding of its own, or with one far below the result's.
_EXACT_IN_F64 = frozenset(("stablehlo.add", "stablehlo.multiply", *_CHOOSE))


def wide(body: RegionCall, arrays: Arrays) -> Arrays:
    """Narrow floats as f64, so that sums and products are rounded once, at the end.

    The specification leaves open in which order, and so how often, partial results are rounded.
    """
    if not all(name in _EXACT_IN_F64 for name in body.combiners):
        return arrays
    return tuple([widen(a) if dtype_of(a.dtype).is_float else a for a in arrays])


def narrow(arrays: Arrays, like: Arrays) -> Arrays:
    """Reduced values in their original types."""
    with np.errstate(all="ignore"):
        return tuple([fit(a, dtype_of(b.dtype)) for a, b in zip(arrays, like, strict=True)])


def fold(body: RegionCall, inits: Arrays, arrays: Arrays) -> Arrays:
    """Reduce the last dim, in order, from initial values; the region need only be associative."""
    return narrow(_fold(body, wide(body, inits), wide(body, arrays)), arrays)


def _fold(body: RegionCall, inits: Arrays, arrays: Arrays) -> Arrays:
    if arrays[0].shape[-1] > SHORT:
        return with_init(body, inits, fold_tree(body, arrays))
    folded = tuple(np.broadcast_to(i, a.shape[:-1]) for i, a in zip(inits, arrays, strict=True))
    for n in range(arrays[0].shape[-1]):
        folded = body.each(*folded, *(a[..., n] for a in arrays))
    return tuple(np.array(f) for f in folded)


def fold_tree(body: RegionCall, arrays: Arrays) -> Arrays:
    """Reduce the last dim as a tree of neighbours."""
    while (count := arrays[0].shape[-1]) > 1:
        even = count // 2 * 2
        left = [a[..., 0:even:2] for a in arrays]
        right = [a[..., 1:even:2] for a in arrays]
        # The odd one stays last: only neighbours are combined, so the region need not commute.
        rest = [a[..., even:] for a in arrays]
        folded = body.each(*left, *right)
        arrays = tuple(np.concatenate(p, -1) for p in zip(folded, rest, strict=True))
    return tuple(a[..., 0] for a in arrays)


def with_init(body: RegionCall, inits: Arrays, folded: Arrays) -> Arrays:
    """Combine the initial values in, once, on the left."""
    before = [np.broadcast_to(i, f.shape) for i, f in zip(inits, folded, strict=True)]
    return tuple(np.array(made) for made in body.each(*before, *folded))


@op("stablehlo.reduce")
class Reduce(Op):
    """out[i..] = the reduction over j.. of in[i.., j..] with the region, from an initial value."""

    dimensions: tuple[int, ...]  # in any order: x.sum((1, 0)) writes (1, 0)
    outs: Types
    regions = 1

    @property
    def folded(self) -> tuple[int, ...]:
        """The reduced dims, in ascending order."""
        return tuple(sorted(self.dimensions))

    def infer(self, *operands: Type, regions: tuple[Body, ...] = ()) -> Types:
        inputs, dtypes = check_fold(self.name, operands, regions)
        dims_in_range(self.name, "dimensions", self.dimensions, inputs[0].rank)
        shape = tuple(s for d, s in enumerate(inputs[0].shape) if d not in self.dimensions)
        return check_results(self.name, self.outs, tuple(TensorType(shape, d) for d in dtypes))

    def rule(self, *operands: TensorType, regions: tuple[Body, ...] = ()) -> Rule:
        count = len(operands) // 2
        combine = combine_of(regions[0]) if regions else None
        builder = RuleBuilder(operands, self.outs)
        # Operands are the inputs, then the initial values, which have no dims.
        out_dim = 0
        for dim, size in enumerate(operands[0].bounds):
            places = [dim] * count + [None] * count
            if dim in self.dimensions:
                builder.factor(places, [None] * count, size, "reduction", combine=combine)
            else:
                builder.factor(places, [out_dim] * count, size)
                out_dim += 1
        return builder.build()

    def reference(self, *arrays: Array, regions: tuple[RegionCall, ...] = ()) -> Arrays:
        count = len(arrays) // 2
        inputs, inits = (
            in_types(arrays[:count], self.outs),
            in_types(arrays[count:], self.outs),
        )
        shape = inputs[0].shape
        free = [d for d in range(len(shape)) if d not in self.dimensions]
        rows = tuple(shape[d] for d in free)
        if inputs[0].size == 0:
            return tuple(np.full(rows, i, i.dtype) for i in inits)
        order = (*free, *self.folded)
        return fold(regions[0], inits, tuple(a.transpose(order).reshape(*rows, -1) for a in inputs))

    def work(self, operands: Types, results: Types, bodies: tuple[Work, ...] = ()) -> Work:
        each = bodies[0] if bodies else Work(flops=1)
        count = elements(operands[0])
        return Work(each.flops * count, each.transcendentals * count, moved(*operands, *results))


def _read_segments(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text[:-1].partition(":")[2].split(","))


# `array<i32: 1, 1>`: the number of operands, or results, of each group.
Segments = Annotated[
    tuple[int, ...],
    Codec(_read_segments, lambda v: f"array<i32: {', '.join(map(str, v))}>"),
]


@op("chlo.scan")
class Scan(Op):
    """Run a region along a dim: (slices of inputs, carries) -> (slices of outputs, carries)."""

    dimension: int
    operandSegmentSizes: Segments  # MLIR's name: the numbers of inputs and carries
    resultSegmentSizes: Segments
    outs: Types
    scan_dim_size: int | None = None
    is_reverse: bool | None = None
    is_associative: bool | None = None
    regions = 1

    def infer(self, *operands: Type, regions: tuple[Body, ...] = ()) -> Types:
        types = tuple(tensor_type(self.name, index, type) for index, type in enumerate(operands))
        require(len(regions) == 1, f"{self.name}: has {len(regions)} regions", "give it one region")
        (body,) = regions
        inputs, carries = self.split(types, self.operandSegmentSizes, "operands")
        carried, stacked = self.split(
            body.results, self.resultSegmentSizes, "results of the region"
        )
        length = self.length(inputs)
        slices = tuple(
            t.with_shape(t.shape[: self.dimension] + t.shape[self.dimension + 1 :]) for t in inputs
        )
        require(
            body.args == (*slices, *carries),
            f"{self.name}: the region takes {[*body.args]}",
            f"it must take the slices and the carries, {[*slices, *carries]}",
        )
        require(
            stacked == carries,
            f"{self.name}: the region gives the carries {[*stacked]}",
            f"they must keep their types, {[*carries]}",
        )
        return check_results(self.name, self.outs, (*self.stacked(carried, length), *carries))

    def split(
        self, types: Types, sizes: tuple[int, ...], what: str
    ) -> tuple[tuple[TensorType, ...], tuple[TensorType, ...]]:
        """The types of the sequences and of the carries."""
        require(
            len(sizes) == 2 and min(sizes) >= 0 and sum(sizes) == len(types),
            f"{self.name}: {len(types)} {what} in groups of {[*sizes]}",
            "the sizes of the two groups must add up",
        )
        all_types = tuple(tensor_type(self.name, index, type) for index, type in enumerate(types))
        return all_types[: sizes[0]], all_types[sizes[0] :]

    def length(self, inputs: tuple[TensorType, ...]) -> Dim:
        """The number of steps of the scan."""
        for what in ("dimension", "scan_dim_size"):
            value = getattr(self, what)
            require(
                value is None or value >= 0, f"{self.name}: {what} is {value}", "give 0 or more"
            )
        common: Dim | None = self.scan_dim_size
        for index, type in enumerate(inputs):
            dims_in_range(self.name, "dimension", (self.dimension,), type.rank)
            size = type.shape[self.dimension]
            require(
                common is None or size == common,
                f"{self.name}: operand {index} dim {self.dimension} is {size}, others are {common}",
                "all inputs must be equally long",
            )
            common = size
        if common is None:
            known = [t.shape[self.dimension] for t in self.declared() if t.rank > self.dimension]
            require(bool(known), f"{self.name}: no input, and no scan_dim_size", "give its length")
            common = known[0]
        return common

    def declared(self) -> tuple[TensorType, ...]:
        """The declared types of the outputs."""
        return tuple(
            t for t in self.outs[: self.resultSegmentSizes[0]] if isinstance(t, TensorType)
        )

    def stacked(self, slices: tuple[TensorType, ...], length: Dim) -> tuple[TensorType, ...]:
        """The types of the outputs, from those of the region's slices."""
        for index, type in enumerate(slices):
            require(
                type.rank >= self.dimension,
                f"{self.name}: result {index} of the region is {type}",
                f"it needs at least {self.dimension} dims to be stacked along dim {self.dimension}",
            )
        at = self.dimension
        return tuple(t.with_shape((*t.shape[:at], length, *t.shape[at:])) for t in slices)

    def rule(self, *operands: TensorType, regions: tuple[Body, ...] = ()) -> Rule:
        """Shardy has no rule; the region may mix its dims, so all stay whole."""
        return RuleBuilder(operands, self.outs).build()

    def reference(self, *arrays: Array, regions: tuple[RegionCall, ...] = ()) -> Arrays:
        count, outputs = self.operandSegmentSizes[0], self.resultSegmentSizes[0]
        inputs, carries = arrays[:count], tuple(arrays[count:])
        steps = range(self.steps(arrays))
        slices: list[Arrays] = []
        for step in reversed(steps) if self.is_reverse else steps:
            made = regions[0](*(np.take(a, step, self.dimension) for a in inputs), *carries)
            slices.append(made[:outputs])
            carries = made[outputs:]
        if self.is_reverse:
            slices.reverse()
        stacked = [
            np.stack([s[n] for s in slices], self.dimension)
            if slices
            else np.empty(t.sizes, t.dtype.numpy)
            for n, t in enumerate(self.declared())
        ]
        return (*stacked, *(np.asarray(c) for c in carries))

    def steps(self, arrays: Arrays) -> int:
        """The number of steps on these arrays."""
        if self.operandSegmentSizes[0]:
            return int(arrays[0].shape[self.dimension])
        if self.scan_dim_size is not None:
            return self.scan_dim_size
        return self.declared()[0].sizes[self.dimension]

    def work(self, operands: Types, results: Types, bodies: tuple[Work, ...] = ()) -> Work:
        sequence = operands[0] if self.operandSegmentSizes[0] else results[0]
        assert isinstance(sequence, TensorType)
        steps = self.scan_dim_size if self.scan_dim_size is not None else 0
        steps = steps or sequence.bounds[self.dimension]
        each = bodies[0] if bodies else Work(flops=1)
        return each.times(steps) + Work(bytes=moved(*operands, *results))


OPS: tuple[type[Op], ...] = (Reduce, Scan)
