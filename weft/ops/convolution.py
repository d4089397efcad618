"""Convolution: a dot of the kernel with the input under each position of a sliding window."""

from __future__ import annotations

import math
import re
from dataclasses import fields
from typing import Annotated

import numpy as np

from weft.errors import WeftError
from weft.ir.attrs import Codec
from weft.ir.check import dims_in_range, require, tensor_type
from weft.ir.op import Op, op
from weft.ir.rule import Rule, RuleBuilder
from weft.ir.scan import dictionary, integers
from weft.ir.types import Array, DType, Shape, TensorType, Type, Types
from weft.ir.work import Work
from weft.ops.combiners import in_dtype
from weft.ops.contract import (
    DotDims,
    Precision,
    check_precision,
    dot,
    dot_work,
    expect_shape,
)
from weft.ops.window import PaddingPairs, WindowDims, make_window, pad
from weft.records import dataclass

_TEXT = re.compile(r"\[(.*)\]\s*x\s*\[(.*)\]\s*->\s*\[(.*)\]")


@dataclass(frozen=True, slots=True)
class ConvDims:
    """The roles of the dims of a convolution's input, kernel and output."""

    input_batch_dimension: int
    input_feature_dimension: int
    input_spatial_dimensions: tuple[int, ...]
    kernel_input_feature_dimension: int
    kernel_output_feature_dimension: int
    kernel_spatial_dimensions: tuple[int, ...]
    output_batch_dimension: int
    output_feature_dimension: int
    output_spatial_dimensions: tuple[int, ...]

    @property
    def input(self) -> tuple[int, ...]:
        """The dims of the input: batch, feature, spatial."""
        return (
            self.input_batch_dimension,
            self.input_feature_dimension,
            *self.input_spatial_dimensions,
        )

    @property
    def kernel(self) -> tuple[int, ...]:
        """The dims of the kernel: input feature, output feature, spatial."""
        return (
            self.kernel_input_feature_dimension,
            self.kernel_output_feature_dimension,
            *self.kernel_spatial_dimensions,
        )

    @property
    def output(self) -> tuple[int, ...]:
        """The dims of the output: batch, feature, spatial."""
        return (
            self.output_batch_dimension,
            self.output_feature_dimension,
            *self.output_spatial_dimensions,
        )

    def check(self, name: str, rank: int) -> None:
        """Refuse dims that do not name each dim of tensors of that rank once."""
        for what, dims in (("input", self.input), ("kernel", self.kernel), ("output", self.output)):
            require(
                len(dims) == rank,
                f"{name}: the {what} has {rank} dims, but dimension_numbers names {len(dims)}",
                "name every dim of the input, the kernel and the output once",
            )
            dims_in_range(name, f"the {what} of dimension_numbers", dims, rank)


def write_conv_dims(dims: ConvDims) -> str:
    """`#stablehlo.conv<[b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f]>`."""

    def side(places: tuple[int, ...], first: str, second: str) -> str:
        labels = dict(zip(places, (first, second, *map(str, range(len(places)))), strict=False))
        return f"[{', '.join(labels[d] for d in sorted(labels))}]"

    left, middle = side(dims.input, "b", "f"), side(dims.kernel, "i", "o")
    return f"#stablehlo.conv<{left}x{middle}->{side(dims.output, 'b', 'f')}>"


def read_conv_dims(text: str) -> ConvDims:
    """The dims from letters and numbers, or from the raw form that names every field."""
    if "<raw" in text:
        members = dictionary("<" + text.partition("<raw")[2])
        # Fields of several dims have names in the plural.
        raw = {
            f.name: integers(members.get(f.name, "[]"))
            if f.name.endswith("s")
            else int(members[f.name])
            for f in fields(ConvDims)
        }
        return ConvDims(**raw)  # type: ignore[arg-type]
    match = _TEXT.search(text)
    if match is None:
        raise WeftError(
            f"{text} does not name the dims of a convolution",
            help="write it as #stablehlo.conv<[b, 0, f]x[0, i, o]->[b, 0, f]>",
        )
    left, kernel, right = match.groups()
    return ConvDims(*_side(left, "b", "f"), *_side(kernel, "i", "o"), *_side(right, "b", "f"))


def _side(text: str, first: str, second: str) -> tuple[int, int, tuple[int, ...]]:
    labels = [part.strip() for part in text.split(",")]
    spatial = [label for label in labels if label not in (first, second)]
    places = tuple(labels.index(str(n)) for n in range(len(spatial)))
    return labels.index(first), labels.index(second), places


ConvDimensionNumbers = Annotated[ConvDims, Codec(read_conv_dims, write_conv_dims)]


def conv_shape(
    name: str,
    lhs: TensorType,
    rhs: TensorType,
    dims: ConvDims,
    window: WindowDims,
    feature_groups: int,
    batch_groups: int,
) -> Shape:
    """The shape of a convolution's result; refuses operands that do not fit."""
    require(
        lhs.dtype is rhs.dtype,
        f"{name}: operand 0 is {lhs}, but operand 1 is {rhs}",
        "their elements must have one type; convert one of them",
    )
    batch, feature, depth, out_features = (
        lhs.shape[dims.input_batch_dimension],
        lhs.shape[dims.input_feature_dimension],
        rhs.shape[dims.kernel_input_feature_dimension],
        rhs.shape[dims.kernel_output_feature_dimension],
    )
    require(
        feature_groups > 0 and batch_groups > 0 and 1 in (feature_groups, batch_groups),
        f"{name}: feature_group_count is {feature_groups}, batch_group_count is {batch_groups}",
        "both must be at least 1, and one of them 1",
    )
    for what, size, groups in (
        ("the input's batch", batch, batch_groups),
        ("the input's feature", feature, feature_groups),
        ("the kernel's output feature", out_features, feature_groups * batch_groups),
    ):
        require(
            groups == 1 or (isinstance(size, int) and size % groups == 0),
            f"{name}: {what} dim is {size}, which {groups} groups do not divide",
            "choose sizes that the number of groups divides",
        )
    own = feature // feature_groups if isinstance(feature, int) else feature
    require(
        depth == own,
        f"{name}: sizes differ: the input has {own} features a group, the kernel takes {depth}",
        "reshape or transpose an operand so the sizes agree",
    )
    shape = list(lhs.shape)
    spatial = tuple(lhs.shape[d] for d in dims.input_spatial_dimensions)
    shape[dims.output_batch_dimension] = batch // batch_groups if isinstance(batch, int) else batch
    shape[dims.output_feature_dimension] = out_features
    for dim, count in zip(dims.output_spatial_dimensions, window.shape(name, spatial), strict=True):
        shape[dim] = count
    return tuple(shape)


def conv_window(
    name: str,
    rhs: TensorType,
    dims: ConvDims,
    strides: tuple[int, ...] | None,
    padding: PaddingPairs | None,
    lhs_dilation: tuple[int, ...] | None,
    rhs_dilation: tuple[int, ...] | None,
) -> WindowDims:
    """The window that a kernel slides over the input's spatial dims."""
    sizes = tuple(rhs.sizes[d] for d in dims.kernel_spatial_dimensions)
    return make_window(name, sizes, strides, padding, lhs_dilation, rhs_dilation)


def convolve(
    lhs: Array,
    rhs: Array,
    dims: ConvDims,
    window: WindowDims,
    reversal: tuple[bool, ...],
    feature_groups: int,
    batch_groups: int,
    out: DType,
) -> Array:
    """The convolution of two arrays, summed in a wide type and rounded once."""
    count = len(window.sizes)
    seen = windows(lhs.transpose(dims.input), window)  # batch, feature, positions.., window..
    groups = feature_groups * batch_groups
    sizes = seen.shape
    if batch_groups > 1:
        seen = seen.reshape(groups, sizes[0] // groups, *sizes[1:])  # [groups, batch, feature, ..]
    else:
        seen = np.moveaxis(seen.reshape(sizes[0], groups, sizes[1] // groups, *sizes[2:]), 1, 0)
    kernel = rhs.transpose(dims.kernel)  # input feature, output feature, window..
    kernel = np.flip(kernel, tuple(n + 2 for n, back in enumerate(reversal) if back))
    depth, features = kernel.shape[:2]
    kernel = kernel.reshape(depth, groups, features // groups, *kernel.shape[2:])
    summed = DotDims((0,), (1,), (2, *range(3 + count, 3 + 2 * count)), (0, *range(3, 3 + count)))
    sums = dot(seen, kernel, summed, out)  # groups, batch, positions.., features of a group
    sums = np.moveaxis(sums, 0, -2).reshape(*sums.shape[1:-1], features)
    return sums.transpose(np.argsort((dims.output[0], *dims.output[2:], dims.output[1])))


def windows(array: Array, window: WindowDims) -> Array:
    """The input under a window over the dims from the third on: positions, then window dims."""
    rest = (1, 1)
    whole = WindowDims(
        rest + window.sizes,
        rest + window.strides,
        ((0, 0), (0, 0), *window.padding),
        rest + window.base_dilations,
        rest + window.window_dilations,
    )
    padded = pad(array, np.zeros((), array.dtype), whole)
    for dim, size in enumerate(array.shape[2:]):
        start = np.arange(window.count(dim, size))[:, None] * window.strides[dim]
        seen = start + np.arange(window.sizes[dim]) * window.window_dilations[dim]
        # the dim becomes the positions; the window dim goes to the end
        padded = np.moveaxis(np.take(padded, seen, dim + 2), dim + 3, -1)
    return padded


@op("stablehlo.convolution")
class Convolution(Op):
    """out[b, o, x..] = sum over i, w.. of lhs[b, i, x.. * stride + w..] * rhs[i, o, w..]."""

    dimension_numbers: ConvDimensionNumbers
    feature_group_count: int
    batch_group_count: int
    out: TensorType
    window_strides: tuple[int, ...] | None = None
    padding: PaddingPairs | None = None
    lhs_dilation: tuple[int, ...] | None = None
    rhs_dilation: tuple[int, ...] | None = None
    window_reversal: tuple[bool, ...] | None = None
    precision_config: Precision | None = None

    def infer(self, lhs: Type, rhs: Type) -> Type:
        left, right = tensor_type(self.name, 0, lhs), tensor_type(self.name, 1, rhs)
        require(
            left.rank == right.rank >= 2,
            f"{self.name}: operand 0 is {left}, operand 1 is {right}",
            "both must have one rank, of at least 2",
        )
        self.dimension_numbers.check(self.name, left.rank)
        check_precision(self.name, self.precision_config)
        window = self.window(right)
        require(
            self.window_reversal is None or len(self.window_reversal) == len(window.sizes),
            f"{self.name}: {len(self.window_reversal or ())} window_reversal for a window "
            f"of {len(window.sizes)} dims",
            "give one for each dim of the window",
        )
        shape = conv_shape(
            self.name,
            left,
            right,
            self.dimension_numbers,
            window,
            self.feature_group_count,
            self.batch_group_count,
        )
        return expect_shape(self.name, self.out, shape)

    def window(self, rhs: TensorType) -> WindowDims:
        """The window that the kernel slides over the input."""
        return conv_window(
            self.name,
            rhs,
            self.dimension_numbers,
            self.window_strides,
            self.padding,
            self.lhs_dilation,
            self.rhs_dilation,
        )

    def rule(self, lhs: TensorType, rhs: TensorType) -> Rule:
        groups = self.feature_group_count, self.batch_group_count
        return conv_rule(lhs, rhs, self.out, self.dimension_numbers, *groups)

    def local(self, operands: Types, results: Types) -> Op:
        """A shard has fewer groups if the factor of the groups is split."""
        lhs, rhs = operands
        out = results[0]
        assert isinstance(lhs, TensorType) and isinstance(rhs, TensorType)
        assert isinstance(out, TensorType)
        dims = self.dimension_numbers
        depth = rhs.bounds[dims.kernel_input_feature_dimension]
        batch = out.bounds[dims.output_batch_dimension]
        features, batches = self.feature_group_count, self.batch_group_count
        # The kernel's input features are those of one group, so they count the groups that are
        # left.
        if features > 1 and depth:
            features = lhs.bounds[dims.input_feature_dimension] // depth
        if batches > 1 and batch:
            batches = lhs.bounds[dims.input_batch_dimension] // batch
        return self.replace(out=out, feature_group_count=features, batch_group_count=batches)

    def reference(self, lhs: Array, rhs: Array) -> Array:
        return convolve(
            lhs,
            rhs,
            self.dimension_numbers,
            self.window(TensorType(rhs.shape, self.out.dtype)),
            self.window_reversal or (),
            self.feature_group_count,
            self.batch_group_count,
            self.out.dtype,
        )

    def work(self, operands: Types, results: Types, bodies: tuple[Work, ...] = ()) -> Work:
        rhs, out = operands[1], results[0]
        assert isinstance(rhs, TensorType) and isinstance(out, TensorType)
        features = rhs.bounds[self.dimension_numbers.kernel_output_feature_dimension]
        return dot_work(out.size * (rhs.size // features if features else 0), operands, results)


def conv_rule(
    lhs: TensorType,
    rhs: TensorType,
    out: TensorType,
    dims: ConvDims,
    feature_groups: int,
    batch_groups: int,
) -> Rule:
    """Shardy's factors: groups, batch, spatial, features.

    A spatial dim of the input has two factors, the window's positions and its size, the larger one
    first; splitting either needs a halo exchange, so its shards are not plain partial sums. A dim
    without a factor gets one of size 1, so that nothing splits it.
    """
    builder = RuleBuilder((lhs, rhs), (out,))
    out_dims = dims.kernel_output_feature_dimension, dims.output_feature_dimension
    if batch_groups > 1:
        builder.factor((dims.input_batch_dimension, out_dims[0]), (out_dims[1],), batch_groups)
    batch = out.bounds[dims.output_batch_dimension]
    # A factor of size 1 next to another one is omitted, as in Shardy.
    place = None if batch_groups > 1 and batch == 1 else dims.input_batch_dimension
    builder.factor((place, None), (dims.output_batch_dimension,), batch)
    alone: list[SpatialDims] = []
    for spatial in zip(*(d[2:] for d in (dims.input, dims.kernel, dims.output)), strict=True):
        alone += spatial_factors(builder, lhs, rhs, out, *spatial)
    if feature_groups > 1:
        builder.factor((dims.input_feature_dimension, out_dims[0]), (out_dims[1],), feature_groups)
    depth = rhs.bounds[dims.kernel_input_feature_dimension]
    place = None if feature_groups > 1 and depth == 1 else dims.input_feature_dimension
    places = (place, dims.kernel_input_feature_dimension)
    builder.factor(places, (None,), depth, "reduction", combine=in_dtype("add", out.dtype))
    own = out.bounds[out_dims[1]] // (batch_groups * feature_groups)
    if own > 1:
        builder.factor((None, out_dims[0]), (out_dims[1],), own)
    elif batch_groups * feature_groups == 1:
        alone += [(None, out_dims[0], None), (None, None, out_dims[1])]
    # Dims of the input first, then of the kernel, then of the result, as Shardy adds them.
    for a, b, c in sorted(alone, key=lambda at: [n if n is not None else math.inf for n in at]):
        builder.factor((a, b), (c,), 1, needs_offset=True)
    return builder.build()


# A dim of the input, the kernel, the output.
SpatialDims = tuple[int | None, int | None, int | None]


def spatial_factors(
    builder: RuleBuilder, lhs: TensorType, rhs: TensorType, out: TensorType, a: int, b: int, c: int
) -> list[SpatialDims]:
    """Add the factors of one spatial dim; returns the dims that have none."""
    left = lhs.bounds[a]
    alone: list[SpatialDims] = []
    sizes = [("permutation", out.bounds[c]), ("reduction", rhs.bounds[b])]
    if sizes[0][1] < sizes[1][1]:
        sizes.reverse()
    for role, wanted in sizes:
        # The input's dim is shared by both factors: the second one gets what the first one leaves.
        size = min(left, wanted)
        if size > 1:
            left //= size
        if role == "reduction":
            if size > 1:
                builder.factor((a, b), (None,), size, "reduction", needs_offset=True)
            else:
                alone.append((None, b, None))
        elif size > 1:
            builder.factor((a, None), (c,), size, "permutation")
        else:
            alone.append((None, None, c))
    if len(alone) == 2:
        alone.append((a, None, None))
    return alone


OPS: tuple[type[Op], ...] = (Convolution,)
