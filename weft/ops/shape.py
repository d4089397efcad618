"""Ops that create, rearrange or reinterpret elements without arithmetic."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from weft.errors import WeftError
from weft.ir.check import dims_in_range, require, tensor_type
from weft.ir.dense import Dense
from weft.ir.op import Op, op
from weft.ir.rule import Rule, RuleBuilder
from weft.ir.types import I32, Array, Dim, DType, Symbol, TensorType, Type, Types, dtype_of
from weft.ir.work import Work, moved


@op("stablehlo.constant")
class Constant(Op):
    """A tensor known when the program is written."""

    value: Dense
    assembly = "$value"  # its text ends with its type
    elementwise = True

    def infer(self) -> Type:
        return self.value.type

    def rule(self) -> Rule:
        builder = RuleBuilder((), (self.value.type,))
        for dim, size in enumerate(self.value.type.bounds):
            # A shard of a splat is the same anywhere.
            builder.factor([], [dim], size, needs_offset=not self.value.is_splat)
        return builder.build()

    def reference(self) -> Array:
        return self.value.array

    def work(self, operands: Types, results: Types, bodies: tuple[Work, ...] = ()) -> Work:
        return Work(bytes=moved(*results))

    def local(self, operands: Types, results: Types) -> Op:
        return self.replace(value=local_value(self.value, results[0]))


def local_value(value: Dense, piece: Type) -> Dense:
    """A shard of a splat constant; other constants differ by device and have no local form."""
    assert isinstance(piece, TensorType)
    return Dense(value.elements, piece) if value.is_splat else value


@op("stablehlo.iota")
class Iota(Op):
    """out[.., i, ..] = i, the index along `iota_dimension`."""

    iota_dimension: int
    out: TensorType
    assembly = "dim = $iota_dimension : $type"

    def infer(self) -> Type:
        check_iota(self.name, self.iota_dimension, self.out)
        return self.out

    def rule(self) -> Rule:
        builder = RuleBuilder((), (self.out,))
        for dim, size in enumerate(self.out.bounds):
            builder.factor([], [dim], size, needs_offset=dim == self.iota_dimension)
        return builder.build()

    def reference(self) -> Array:
        return iota(self.out, self.iota_dimension)

    def work(self, operands: Types, results: Types, bodies: tuple[Work, ...] = ()) -> Work:
        return Work(bytes=moved(*results))


def check_iota(name: str, dim: int, out: TensorType) -> None:
    """Refuse a dim that the result lacks, and element types that are not numbers."""
    require(
        out.dtype.kind != "bool",
        f"{name}: the result is {out}",
        "its elements must be int, uint, float or complex",
    )
    dims_in_range(name, "iota_dimension", (dim,), out.rank)


def iota(out: TensorType, dim: int) -> Array:
    """The index along one dim, at every element."""
    sizes = out.sizes
    counted = np.arange(sizes[dim]).astype(out.dtype.numpy)
    return np.broadcast_to(np.expand_dims(counted, [d for d in range(out.rank) if d != dim]), sizes)


@op("stablehlo.reshape")
class Reshape(Op):
    """out = operand, element by element in row-major order, in another shape."""

    out: TensorType
    assembly = "$0 : $signature"

    def infer(self, operand: Type) -> Type:
        check_reshape(self.name, tensor_type(self.name, 0, operand), self.out)
        return self.out

    def rule(self, operand: TensorType) -> Rule:
        builder = RuleBuilder((operand,), (self.out,))
        # Dims do not correspond without elements or with dynamic sizes.
        if operand.size == self.out.size != 0:
            for source, target, size in shared_factors(operand.bounds, self.out.bounds):
                alone = size > 1 and (source is None or target is None)
                builder.factor([source], [target], size, needs_offset=alone)
        return builder.build()

    def reference(self, operand: Array) -> Array:
        return operand.reshape(self.out.sizes)

    def work(self, operands: Types, results: Types, bodies: tuple[Work, ...] = ()) -> Work:
        return Work()  # no data movement


def check_reshape(name: str, operand: TensorType, out: TensorType) -> None:
    """Refuse a reshape that changes the elements' type or number."""
    _same_dtype(name, operand, out)
    require(
        operand.size == out.size or not (operand.is_static and out.is_static),
        f"{name}: {operand} has {operand.size} elements, but {out} has {out.size}",
        "give shapes whose sizes have one product",
    )


def _same_dtype(name: str, operand: TensorType, out: TensorType) -> None:
    require(
        operand.dtype is out.dtype,
        f"{name}: the operand's elements are {operand.dtype}, the result's are {out.dtype}",
        "they must be the same; convert first",
    )


def shared_factors(
    source: Sequence[int], target: Sequence[int]
) -> Iterator[tuple[int | None, int | None, int]]:
    """The factors of a reshape: the dim they run over on each side, if any, and their sizes.

    Both sides are walked from the major dim. Where the products so far agree, the common divisor of
    the two current dims is one factor of both; where they differ, the side behind takes factors of
    its own until it has caught up. `[4, 6] -> [2, 12]` gives `[ij, k] -> [i, jk]`.
    """
    i = j = 0
    left = right = 1  # products of the factors assigned so far
    left_rest = right_rest = 1  # the unassigned rest of the current dims
    while i < len(source) or j < len(target):
        if i < len(source) and source[i] == 1:
            yield i, None, 1
            i += 1
            continue
        if j < len(target) and target[j] == 1:
            yield None, j, 1
            j += 1
            continue
        if left_rest == 1 and i < len(source):
            left_rest = source[i]
        if right_rest == 1 and j < len(target):
            right_rest = target[j]
        common = math.gcd(left_rest, right_rest)
        take_left = take_right = common
        if left == right and common > 1:
            yield i, j, common
        else:
            take_left = _catch_up(left_rest, common, left, right) if left <= right else 1
            take_right = _catch_up(right_rest, common, right, left) if right <= left else 1
            if take_left > 1:
                yield i, None, take_left
            if take_right > 1:
                yield None, j, take_right
        left, left_rest = left * take_left, left_rest // take_left
        right, right_rest = right * take_right, right_rest // take_right
        i += left_rest == 1
        j += right_rest == 1


def _catch_up(rest: int, common: int, behind: int, ahead: int) -> int:
    """The next factor of a side whose product is not ahead of the other's."""
    gap, uneven = divmod(ahead, behind)
    # All that is missing, if this dim has it; else what the two dims do not have in common.
    if gap > 1 and not uneven and rest % gap == 0:
        return gap
    return rest // common if rest > common else rest


@op("stablehlo.transpose")
class Transpose(Op):
    """The operand with its dims in another order: dim d of the result is its permutation[d]."""

    permutation: tuple[int, ...]
    assembly = "$0, dims = $permutation : $signature"

    def infer(self, operand: Type) -> Type:
        operand_type = tensor_type(self.name, 0, operand)
        require(
            sorted(self.permutation) == list(range(operand_type.rank)),
            f"{self.name}: {self.permutation} is not a permutation of the dims of {operand_type}",
            f"name each of the {operand_type.rank} dims once",
        )
        return operand_type.with_shape(tuple([operand_type.shape[d] for d in self.permutation]))

    def rule(self, operand: TensorType) -> Rule:
        sizes = operand.bounds
        out = operand.with_shape(tuple([operand.shape[d] for d in self.permutation]))
        builder = RuleBuilder((operand,), (out,))
        for target, source in enumerate(self.permutation):
            builder.factor([source], [target], sizes[source])
        return builder.build()

    def reference(self, operand: Array) -> Array:
        return operand.transpose(self.permutation)

    def work(self, operands: Types, results: Types, bodies: tuple[Work, ...] = ()) -> Work:
        return Work(bytes=moved(*operands, *results))


@op("stablehlo.broadcast_in_dim")
class BroadcastInDim(Op):
    """Dim k of the operand is dim broadcast_dimensions[k] of the result; the others repeat it."""

    broadcast_dimensions: tuple[int, ...]
    out: TensorType
    assembly = "$0, dims = $broadcast_dimensions : $signature"

    def infer(self, operand: Type) -> Type:
        given = tensor_type(self.name, 0, operand)
        check_broadcast(self.name, given, self.broadcast_dimensions, self.out)
        return self.out

    def rule(self, operand: TensorType) -> Rule:
        return broadcast_rule(operand, self.broadcast_dimensions, self.out)

    def reference(self, operand: Array) -> Array:
        return broadcast(operand, self.broadcast_dimensions, self.out.sizes)

    def work(self, operands: Types, results: Types, bodies: tuple[Work, ...] = ()) -> Work:
        return Work(bytes=moved(*operands, *results))


def check_broadcast(name: str, operand: TensorType, dims: tuple[int, ...], out: TensorType) -> None:
    """Refuse dims that do not place each dim of the operand, or sizes that do not fit."""
    _same_dtype(name, operand, out)
    require(
        len(dims) == operand.rank,
        f"{name}: broadcast_dimensions = {dims}, but the operand has {operand.rank} dims",
        "give for each dim of the operand the dim of the result that it becomes",
    )
    dims_in_range(name, "broadcast_dimensions", dims, out.rank)
    for source, target in enumerate(dims):
        require(
            operand.shape[source] in (1, out.shape[target]),
            f"{name}: operand dim {source} is {operand.shape[source]}, "
            f"but result dim {target} is {out.shape[target]}",
            "a dim becomes one of its own size; only size 1 is repeated",
        )


def broadcast_rule(operand: TensorType, dims: tuple[int, ...], out: TensorType) -> Rule:
    """A factor for each dim of the result, and one for each broadcast dim of size 1."""
    builder = RuleBuilder((operand,), (out,))
    sources = {target: source for source, target in enumerate(dims)}
    for target, size in enumerate(out.bounds):
        source = sources.get(target)
        if source is not None and operand.shape[source] == 1 != size:
            builder.factor([source], [None], 1)
            source = None
        builder.factor([source], [target], size)
    return builder.build()


def broadcast(operand: Array, dims: tuple[int, ...], sizes: tuple[int, ...]) -> Array:
    """The operand broadcast with its dims in these positions."""
    aligned = [1] * len(sizes)
    for source, target in enumerate(dims):
        aligned[target] = operand.shape[source]
    # Dims may be placed in any order: they are sorted by their places first.
    order = sorted(range(len(dims)), key=dims.__getitem__)
    return np.broadcast_to(operand.transpose(order).reshape(aligned), sizes)


@op("stablehlo.broadcast")
class Broadcast(Op):
    """out[b.., i..] = operand[i..], for new major dims b of the given sizes."""

    broadcast_sizes: tuple[int, ...]
    assembly = "$0, sizes = $broadcast_sizes : $signature"

    def infer(self, operand: Type) -> Type:
        require(
            min(self.broadcast_sizes, default=0) >= 0,
            f"{self.name}: broadcast_sizes = {self.broadcast_sizes} holds a negative size",
            "give sizes of 0 or more",
        )
        given = tensor_type(self.name, 0, operand)
        return given.with_shape((*self.broadcast_sizes, *given.shape))

    def rule(self, operand: TensorType) -> Rule:
        added = len(self.broadcast_sizes)
        out = operand.with_shape((*self.broadcast_sizes, *operand.shape))
        return broadcast_rule(operand, tuple(range(added, out.rank)), out)

    def reference(self, operand: Array) -> Array:
        return np.broadcast_to(operand, (*self.broadcast_sizes, *operand.shape))

    def work(self, operands: Types, results: Types, bodies: tuple[Work, ...] = ()) -> Work:
        return Work(bytes=moved(*operands, *results))

    def local(self, operands: Types, results: Types) -> Op:
        out = results[0]
        assert isinstance(out, TensorType)
        return Broadcast(out.sizes[: len(self.broadcast_sizes)])


@op("stablehlo.reverse")
class Reverse(Op):
    """out[.., i, ..] = operand[.., n - 1 - i, ..] along each of `dimensions`."""

    dimensions: tuple[int, ...]
    assembly = "$0, dims = $dimensions : $type"

    def infer(self, operand: Type) -> Type:
        given = tensor_type(self.name, 0, operand)
        dims_in_range(self.name, "dimensions", self.dimensions, given.rank)
        return given

    def rule(self, operand: TensorType) -> Rule:
        builder = RuleBuilder((operand,), (operand,))
        return builder.pointwise(
            operand.bounds, lambda dim: "permutation" if dim in self.dimensions else "pass"
        ).build()

    def reference(self, operand: Array) -> Array:
        return np.flip(operand, self.dimensions)

    def work(self, operands: Types, results: Types, bodies: tuple[Work, ...] = ()) -> Work:
        return Work(bytes=moved(*operands, *results))


@op("stablehlo.bitcast_convert")
class BitcastConvert(Op):
    """out has the operand's bits; a narrower type splits each element along a new minor dim."""

    out: TensorType
    assembly = "$0 : $signature"

    def infer(self, operand: Type) -> Type:
        operand_type = tensor_type(self.name, 0, operand)
        require(
            operand_type.dtype.is_complex == self.out.dtype.is_complex,
            f"{self.name}: from {operand_type.dtype} to {self.out.dtype}",
            "complex numbers have no bits in common with others; use real and imag",
        )
        wide, narrow = (
            (operand_type, self.out)
            if operand_type.rank <= self.out.rank
            else (self.out, operand_type)
        )
        ratio: tuple[Dim, ...] = ()
        if wide.dtype.bits != narrow.dtype.bits:
            require(
                wide.dtype.bits % narrow.dtype.bits == 0,
                f"{self.name}: {wide.dtype} does not split into whole elements of {narrow.dtype}",
                "the number of bits of one type must be a multiple of the other's",
            )
            ratio = (wide.dtype.bits // narrow.dtype.bits,)
        require(
            narrow.shape == wide.shape + ratio,
            f"{self.name}: from {operand_type} to {self.out}",
            "the narrower type needs a minor dim more, for the parts of each wide element",
        )
        return self.out

    def rule(self, operand: TensorType) -> Rule:
        builder = RuleBuilder((operand,), (self.out,))
        for dim, size in enumerate(operand.bounds[: self.out.rank]):
            builder.factor([dim], [dim], size)
        return builder.build()

    def reference(self, operand: Array) -> Array:
        held = self.out.dtype
        return from_bits(to_bits(operand).reshape(*self.out.sizes, held.bits), held)

    def work(self, operands: Types, results: Types, bodies: tuple[Work, ...] = ()) -> Work:
        return Work()  # no data movement


def to_bits(array: Array) -> Array:
    """The bits of every element along a new minor dim, the least significant first."""
    held = np.ascontiguousarray(array).reshape(*array.shape, 1).view(np.uint8)
    return np.unpackbits(held, axis=-1, bitorder="little")[..., : dtype_of(array.dtype).bits]


def from_bits(bits: Array, dtype: DType) -> Array:
    """The elements whose bits lie along the minor dim."""
    room = 8 * dtype.numpy.itemsize - dtype.bits  # sub-byte types take a byte each in numpy
    padded = np.pad(bits, [(0, 0)] * (bits.ndim - 1) + [(0, room)])
    return np.packbits(padded, axis=-1, bitorder="little").view(dtype.numpy)[..., 0]


@op("stablehlo.get_dimension_size")
class GetDimensionSize(Op):
    """out = the size of one dim of the operand."""

    dimension: int
    assembly = "$0, dim = $dimension : $signature"

    def infer(self, operand: Type) -> Type:
        given = tensor_type(self.name, 0, operand)
        dims_in_range(self.name, "dimension", (self.dimension,), given.rank)
        return TensorType((), I32)

    def rule(self, operand: TensorType) -> Rule:
        return RuleBuilder((operand,), (TensorType((), I32),)).build()

    def reference(self, operand: Array) -> Array:
        return np.array(operand.shape[self.dimension], np.int32)

    def work(self, operands: Types, results: Types, bodies: tuple[Work, ...] = ()) -> Work:
        return Work(bytes=moved(*results))


@op("stablehlo.set_dimension_size")
class SetDimensionSize(Op):
    """out = the first `size` elements of the operand along one dim."""

    dimension: int
    out: TensorType
    assembly = "$operands, dim = $dimension : $signature"

    def infer(self, operand: Type, size: Type) -> Type:
        operand_type = tensor_type(self.name, 0, operand)
        _same_dtype(self.name, operand_type, self.out)
        dims_in_range(self.name, "dimension", (self.dimension,), operand_type.rank)
        require(
            size is TensorType((), I32),
            f"{self.name}: operand 1 is {size}",
            "the size is a tensor<i32>",
        )
        bound = operand_type.bounds[self.dimension]
        new = self.out.shape[self.dimension] if self.out.rank == operand_type.rank else None
        fits = new == Symbol(bound) or (isinstance(new, int) and new <= bound)
        changed = list(operand_type.shape)
        changed[self.dimension] = new if new is not None and fits else Symbol(bound)
        require(
            self.out.shape == tuple(changed),
            f"{self.name}: the result is {self.out}, the operand {operand_type}",
            f"only dim {self.dimension} may differ, and be at most {bound}",
        )
        return self.out

    def rule(self, operand: TensorType, size: TensorType) -> Rule:
        builder = RuleBuilder((operand, size), (self.out,))
        return builder.pointwise(operand.bounds, skip=lambda dim: dim == self.dimension).build()

    def reference(self, operand: Array, size: Array) -> Array:
        out_size = self.out.sizes[self.dimension]
        if int(size) != out_size:
            raise WeftError(
                f"{self.name}: the size is {int(size)}, but the result is {self.out}",
                help=f"give the size {out_size}, or another result type",
            )
        return operand[(slice(None),) * self.dimension + (slice(out_size),)]

    def work(self, operands: Types, results: Types, bodies: tuple[Work, ...] = ()) -> Work:
        return Work(bytes=2 * moved(*results))


OPS: tuple[type[Op], ...] = (
    Constant,
    Iota,
    Reshape,
    Transpose,
    BroadcastInDim,
    Broadcast,
    Reverse,
    BitcastConvert,
    GetDimensionSize,
    SetDimensionSize,
)
