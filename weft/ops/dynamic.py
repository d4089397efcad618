"""Ops with sizes as operands: they run if the result type determines the sizes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from weft.errors import WeftError
from weft.ir.check import dims_in_range, one_of, require, tensor_type
from weft.ir.op import Op, op
from weft.ir.rule import Rule, RuleBuilder
from weft.ir.types import Array, TensorType, Type, Types, type_of
from weft.ir.work import Work, moved
from weft.ops.contract import Precision
from weft.ops.convolution import ConvDimensionNumbers, Convolution, conv_shape
from weft.ops.index import (
    GATHER_DIMS,
    GatherDims,
    check_windows,
    gather,
    gather_windows,
    gathered_shape,
)
from weft.ops.shape import broadcast, check_broadcast, check_iota, check_reshape, iota
from weft.ops.slicing import check_fill, check_inside, check_pad, check_slice, pad
from weft.ops.window import PaddingPairs


class Dynamic(Op):
    """An op with sizes as operands: no dim can be split, since the sizes are global."""

    __slots__ = ()
    out: TensorType

    def rule(self, *operands: TensorType) -> Rule:
        return RuleBuilder(operands, (self.out,)).build()

    def work(self, operands: Types, results: Types, bodies: tuple[Work, ...] = ()) -> Work:
        return Work(bytes=moved(*operands, *results))


def sizes_operand(name: str, index: int, type: Type, count: int) -> TensorType:
    """The type of an operand that holds `count` sizes."""
    checked = one_of(name, index, type, "int uint")
    require(
        checked.shape == (count,),
        f"{name}: operand {index} is {checked}",
        f"it holds one number for each dim, so its shape is ({count},)",
    )
    return checked


def sizes_operands(name: str, first: int, types: Sequence[Type], count: int, words: str) -> None:
    """Refuse operands from `first` on that do not hold `count` sizes each, all of one type."""
    for index, type in enumerate(types, first):
        sizes_operand(name, index, type, count)
        require(
            type is types[0],
            f"{name}: operand {first} is {types[0]}, but operand {index} is {type}",
            f"{words} have one type",
        )


def numbers(sizes: Array) -> tuple[int, ...]:
    """The sizes that an operand holds."""
    return tuple([int(n) for n in sizes])


def agree(name: str, result_type: TensorType, out: TensorType) -> None:
    """Refuse sizes that differ from the result type."""
    if result_type.shape != out.sizes:
        raise WeftError(
            f"{name}: the sizes are those of {result_type}, but the result is {out}",
            help="give sizes that fit the result type",
        )


@op("stablehlo.dynamic_reshape")
class DynamicReshape(Dynamic):
    """out = operand in row-major order, in the shape that the second operand holds."""

    out: TensorType
    assembly = "$operands : $signature"

    def infer(self, operand: Type, shape: Type) -> Type:
        check_reshape(self.name, tensor_type(self.name, 0, operand), self.out)
        sizes_operand(self.name, 1, shape, self.out.rank)
        return self.out

    def reference(self, operand: Array, shape: Array) -> Array:
        agree(self.name, self.out.with_shape(numbers(shape)), self.out)
        return operand.reshape(self.out.sizes)


@op("stablehlo.dynamic_broadcast_in_dim")
class DynamicBroadcastInDim(Dynamic):
    """broadcast_in_dim, to the shape that the second operand holds."""

    broadcast_dimensions: tuple[int, ...]
    out: TensorType
    # Hints for compilers of dynamic shapes; here all sizes are known.
    known_expanding_dimensions: tuple[int, ...] | None = None
    known_nonexpanding_dimensions: tuple[int, ...] | None = None

    def infer(self, operand: Type, shape: Type) -> Type:
        operand_type = tensor_type(self.name, 0, operand)
        check_broadcast(self.name, operand_type, self.broadcast_dimensions, self.out)
        sizes_operand(self.name, 1, shape, self.out.rank)
        known = self.known_expanding_dimensions or (), self.known_nonexpanding_dimensions or ()
        dims_in_range(self.name, "what is known of dims", (*known[0], *known[1]), operand_type.rank)
        return self.out

    def reference(self, operand: Array, shape: Array) -> Array:
        agree(self.name, self.out.with_shape(numbers(shape)), self.out)
        return broadcast(operand, self.broadcast_dimensions, self.out.sizes)


@op("stablehlo.dynamic_iota")
class DynamicIota(Dynamic):
    """iota, in the shape that the operand holds."""

    iota_dimension: int
    out: TensorType
    assembly = "$0, dim = $iota_dimension : $signature"

    def infer(self, shape: Type) -> Type:
        check_iota(self.name, self.iota_dimension, self.out)
        sizes_operand(self.name, 0, shape, self.out.rank)
        return self.out

    def reference(self, shape: Array) -> Array:
        agree(self.name, self.out.with_shape(numbers(shape)), self.out)
        return iota(self.out, self.iota_dimension)


@op("stablehlo.dynamic_pad")
class DynamicPad(Dynamic):
    """pad, by the amounts in the last three operands: low, high and interior."""

    out: TensorType
    assembly = "$operands : $signature"

    def infer(self, operand: Type, value: Type, low: Type, high: Type, interior: Type) -> Type:
        operand_type = tensor_type(self.name, 0, operand)
        check_fill(self.name, operand_type, value)
        amounts = (low, high, interior)
        sizes_operands(self.name, 2, amounts, operand_type.rank, "low, high and interior")
        same_rank(self.name, operand_type, self.out)
        return self.out

    def reference(
        self, operand: Array, value: Array, low: Array, high: Array, interior: Array
    ) -> Array:
        dims = list(zip(numbers(low), numbers(high), numbers(interior), strict=True))
        agree(self.name, check_pad(self.name, type_of(operand), dims), self.out)
        return pad(operand, value, dims)


def same_rank(name: str, operand: TensorType, out: TensorType) -> None:
    """Refuse a result whose element type or rank differs from the operand's."""
    require(
        operand.dtype is out.dtype and operand.rank == out.rank,
        f"{name}: the operand is {operand}, the result {out}",
        "the result has the operand's element type and number of dims",
    )


@op("stablehlo.real_dynamic_slice")
class RealDynamicSlice(Dynamic):
    """slice, by the starts, limits and strides that the last three operands hold."""

    out: TensorType
    assembly = "$operands : $signature"

    def infer(self, operand: Type, starts: Type, limits: Type, strides: Type) -> Type:
        given = tensor_type(self.name, 0, operand)
        places = (starts, limits, strides)
        sizes_operands(self.name, 1, places, given.rank, "starts, limits and strides")
        same_rank(self.name, given, self.out)
        return self.out

    def reference(self, operand: Array, starts: Array, limits: Array, strides: Array) -> Array:
        dims = list(zip(numbers(starts), numbers(limits), numbers(strides), strict=True))
        agree(self.name, check_slice(self.name, type_of(operand), dims), self.out)
        return operand[tuple([slice(*dim) for dim in dims])]

    def work(self, operands: Types, results: Types, bodies: tuple[Work, ...] = ()) -> Work:
        return Work(bytes=moved(*operands[1:]) + 2 * moved(*results))


@op("stablehlo.dynamic_gather")
class DynamicGather(Dynamic):
    """gather, with the window sizes that the third operand holds."""

    dimension_numbers: Annotated[GatherDims, GATHER_DIMS]
    out: TensorType
    indices_are_sorted: bool = False

    def infer(self, operand: Type, indices: Type, sizes: Type) -> Type:
        operand_type, places = (
            tensor_type(self.name, 0, operand),
            one_of(self.name, 1, indices, "int uint"),
        )
        sizes_operand(self.name, 2, sizes, operand_type.rank)
        windows = gather_windows(self.dimension_numbers)
        rank = windows.rank(places)
        check_windows(self.name, windows, operand_type, places, rank)
        counts = [n for d, n in enumerate(places.shape) if d != windows.vector]
        require(
            operand_type.dtype is self.out.dtype
            and self.out.rank == rank
            and [self.out.shape[d] for d in windows.batch(rank)] == counts,
            f"{self.name}: the operand is {operand_type}, the indices {places}, the result "
            f"{self.out}",
            f"the result has the operand's element type and {rank} dims; those that count windows "
            f"are {counts}",
        )
        return self.out

    def reference(self, operand: Array, indices: Array, sizes: Array) -> Array:
        windows, wanted = gather_windows(self.dimension_numbers), numbers(sizes)
        check_inside(self.name, "slice_sizes", wanted, type_of(operand))
        shape = gathered_shape(windows, type_of(indices), wanted)
        agree(self.name, self.out.with_shape(shape), self.out)
        return gather(windows, wanted, operand, indices)

    def work(self, operands: Types, results: Types, bodies: tuple[Work, ...] = ()) -> Work:
        return Work(bytes=moved(*operands[1:]) + 2 * moved(*results))


@op("stablehlo.dynamic_conv")
class DynamicConv(Dynamic):
    """convolution, with the padding that the third operand holds."""

    dimension_numbers: ConvDimensionNumbers
    feature_group_count: int
    batch_group_count: int
    out: TensorType
    window_strides: tuple[int, ...] | None = None
    padding: PaddingPairs | None = None  # older programs carry one; the operand counts
    lhs_dilation: tuple[int, ...] | None = None
    rhs_dilation: tuple[int, ...] | None = None
    window_reversal: tuple[bool, ...] | None = None
    precision_config: Precision | None = None

    def infer(self, lhs: Type, rhs: Type, padding: Type) -> Type:
        left, right = tensor_type(self.name, 0, lhs), tensor_type(self.name, 1, rhs)
        dims = self.dimension_numbers
        spatial = len(dims.input_spatial_dimensions)
        require(
            left.rank == right.rank == self.out.rank == spatial + 2,
            f"{self.name}: the operands are {left} and {right}, the result {self.out}",
            f"all have {spatial + 2} dims, as dimension_numbers says",
        )
        dims.check(self.name, left.rank)
        require(
            one_of(self.name, 2, padding, "int uint").shape == (spatial, 2),
            f"{self.name}: operand 2 is {padding}",
            f"it holds low and high padding for each spatial dim, so its shape is ({spatial}, 2)",
        )
        groups = self.feature_group_count, self.batch_group_count
        # Any padding will do: the spatial dims, which depend on it, are not compared.
        window = self.fixed(((0, 0),) * spatial).window(right)
        shape = conv_shape(self.name, left, right, dims, window, *groups)
        for dim in (dims.output_batch_dimension, dims.output_feature_dimension):
            require(
                self.out.shape[dim] == shape[dim],
                f"{self.name}: dim {dim} of the result is {self.out.shape[dim]}, not {shape[dim]}",
                "only the spatial dims depend on the padding",
            )
        return self.out

    def fixed(self, padding: PaddingPairs) -> Convolution:
        """The convolution with this padding."""
        given: dict[str, Any] = {name: getattr(self, name) for name in self.fields()}
        return Convolution(**(given | {"padding": padding}))

    def reference(self, lhs: Array, rhs: Array, padding: Array) -> Array:
        fixed = self.fixed(tuple([(int(low), int(high)) for low, high in padding]))
        fixed.infer(type_of(lhs), type_of(rhs))
        return fixed.reference(lhs, rhs)

    def work(self, operands: Types, results: Types, bodies: tuple[Work, ...] = ()) -> Work:
        spatial = len(self.dimension_numbers.input_spatial_dimensions)
        return self.fixed(((0, 0),) * spatial).work(operands[:2], results)


OPS: tuple[type[Op], ...] = (
    DynamicReshape,
    DynamicBroadcastInDim,
    DynamicIota,
    DynamicPad,
    RealDynamicSlice,
    DynamicGather,
    DynamicConv,
)
