"""Slices, concatenations and padding."""

from __future__ import annotations

import numpy as np

from weft.ir.check import dims_in_range, one_of, require, tensor_type
from weft.ir.op import Op, op
from weft.ir.rule import Role, Rule, RuleBuilder
from weft.ir.types import Array, Dim, Symbol, TensorType, Type, Types
from weft.ir.work import Work, moved


@op("stablehlo.slice")
class Slice(Op):
    """out[i..] = operand[start + i * stride ..], up to the limits, exclusive."""

    start_indices: tuple[int, ...]
    limit_indices: tuple[int, ...]
    strides: tuple[int, ...]
    assembly = "$0 $ranges : $signature"

    @property
    def ranges(self) -> str:
        """`[0:4, 1:9:2]`."""
        shown = [
            f"{start}:{limit}" + (f":{stride}" if stride != 1 else "")
            for start, limit, stride in self._dims()
        ]
        return f"[{', '.join(shown)}]"

    def _dims(self) -> list[tuple[int, int, int]]:
        return list(zip(self.start_indices, self.limit_indices, self.strides, strict=True))

    def infer(self, operand: Type) -> Type:
        given = tensor_type(self.name, 0, operand)
        for what in ("start_indices", "limit_indices", "strides"):
            one_per_dim(self.name, what, getattr(self, what), given)
        return check_slice(self.name, given, self._dims())

    def rule(self, operand: TensorType) -> Rule:
        out = operand.with_shape(tuple([_length(*dim) for dim in self._dims()]))
        return cut_rule((operand,), out, set())

    def reference(self, operand: Array) -> Array:
        return operand[tuple([slice(*dim) for dim in self._dims()])]

    def work(self, operands: Types, results: Types, bodies: tuple[Work, ...] = ()) -> Work:
        return Work(bytes=2 * moved(*results))

    def local(self, operands: Types, results: Types) -> Op:
        source, out = operands[0], results[0]
        assert isinstance(source, TensorType) and isinstance(out, TensorType)
        # Dims that are not cut are as long as the shard; cut ones are never split.
        limits = [
            size if start == 0 and stride == 1 and size == kept else limit
            for (start, limit, stride), size, kept in zip(
                self._dims(), source.sizes, out.sizes, strict=True
            )
        ]
        return self.replace(limit_indices=tuple(limits))


def one_per_dim(name: str, what: str, values: tuple[int, ...], operand: TensorType) -> None:
    """Refuse a list that does not hold one number for each dim of the operand."""
    require(
        len(values) == operand.rank,
        f"{name}: {what} = {values}, but {operand} has {operand.rank} dims",
        "give one number for each dim",
    )


def check_slice(name: str, operand: TensorType, dims: list[tuple[int, int, int]]) -> TensorType:
    """The type of a slice, which must lie inside the operand."""
    for dim, (start, limit, stride) in enumerate(dims):
        size = operand.bounds[dim]
        require(
            0 <= start <= limit <= size,
            f"{name}: [{start}:{limit}] of dim {dim}, whose size is {size}",
            f"need 0 <= start <= limit <= {size}",
        )
        require(
            stride > 0,
            f"{name}: the stride of dim {dim} is {stride}",
            "use a stride of 1 or more; stablehlo.reverse goes backwards",
        )
    return operand.with_shape(tuple([_length(*dim) for dim in dims]))


def _length(start: int, limit: int, stride: int) -> int:
    # (limit - start) / stride, rounded up
    return -((start - limit) // stride)


def cut_rule(operands: tuple[TensorType, ...], out: TensorType, shifted: set[int]) -> Rule:
    """Dims of the first operand that keep their size pass; the others need a halo."""
    builder = RuleBuilder(operands, (out,))
    others = [None] * (len(operands) - 1)
    for dim, (size, kept) in enumerate(zip(operands[0].bounds, out.bounds, strict=True)):
        role: Role = "pass" if size == kept else "permutation"
        builder.factor([dim, *others], [dim], size, role, needs_offset=dim in shifted)
    return builder.build()


@op("stablehlo.pad")
class Pad(Op):
    """The operand with a value before, after and between its elements; negative padding crops."""

    edge_padding_low: tuple[int, ...]
    edge_padding_high: tuple[int, ...]
    interior_padding: tuple[int, ...]
    assembly = (
        "$operands, low = $edge_padding_low, high = $edge_padding_high, "
        "interior = $interior_padding : $signature"
    )

    def infer(self, operand: Type, value: Type) -> Type:
        operand_type = tensor_type(self.name, 0, operand)
        check_fill(self.name, operand_type, value)
        for what in ("edge_padding_low", "edge_padding_high", "interior_padding"):
            one_per_dim(self.name, what, getattr(self, what), operand_type)
        return check_pad(self.name, operand_type, self._dims())

    def _dims(self) -> list[tuple[int, int, int]]:
        given = (self.edge_padding_low, self.edge_padding_high, self.interior_padding)
        return list(zip(*given, strict=True))

    def rule(self, operand: TensorType, value: TensorType) -> Rule:
        out = check_pad(self.name, operand, self._dims())
        shifted = {d for d, amounts in enumerate(self._dims()) if any(amounts)}
        return cut_rule((operand, value), out, shifted)

    def reference(self, operand: Array, value: Array) -> Array:
        return pad(operand, value, self._dims())

    def work(self, operands: Types, results: Types, bodies: tuple[Work, ...] = ()) -> Work:
        return Work(bytes=moved(*operands, *results))


def check_fill(name: str, operand: TensorType, value: Type) -> None:
    """Refuse a padding value that is not a scalar of the operand's elements."""
    require(
        value is operand.with_shape(()),
        f"{name}: operand 0 is {operand}, but operand 1 is {value}",
        f"the padding value is a {operand.with_shape(())}",
    )


def check_pad(name: str, operand: TensorType, dims: list[tuple[int, int, int]]) -> TensorType:
    """The type of the padded tensor; no size may become negative."""
    sizes: list[Dim] = []
    for dim, (low, high, interior) in enumerate(dims):
        require(
            interior >= 0,
            f"{name}: interior_padding of dim {dim} is {interior}",
            "use 0 or more; only the edges may be negative",
        )
        new = _padded(operand.bounds[dim], low, high, interior)
        require(
            new >= 0,
            f"{name}: dim {dim} of size {operand.shape[dim]} becomes {new}",
            "cut off less: the new size must be 0 or more",
        )
        sizes.append(Symbol(new) if isinstance(operand.shape[dim], Symbol) else new)
    return operand.with_shape(tuple(sizes))


def _padded(size: int, low: int, high: int, interior: int) -> int:
    return low + size + max(size - 1, 0) * interior + high


def pad(operand: Array, value: Array, dims: list[tuple[int, int, int]]) -> Array:
    """A tensor of the value, with the operand's elements at their padded positions."""
    sizes = [_padded(n, *dim) for n, dim in zip(operand.shape, dims, strict=True)]
    out = np.broadcast_to(value, sizes).copy()
    targets, sources = [], []
    for size, new, (low, _, interior) in zip(operand.shape, sizes, dims, strict=True):
        step = interior + 1
        skipped = max(0, -(low // step))  # elements cropped at the low edge
        first = low + skipped * step
        count = max(0, min(size - skipped, len(range(first, new, step))))
        targets.append(slice(first, first + count * step, step))
        sources.append(slice(skipped, skipped + count))
    out[tuple(targets)] = operand[tuple(sources)]
    return out


@op("stablehlo.concatenate")
class Concatenate(Op):
    """The operands concatenated along one dim."""

    dimension: int
    assembly = "$operands, dim = $dimension : $signature"

    def infer(self, *operands: Type) -> Type:
        require(len(operands) > 0, f"{self.name}: has no operands", "give it at least one")
        types = [tensor_type(self.name, n, t) for n, t in enumerate(operands)]
        first = types[0]
        dims_in_range(self.name, "dimension", (self.dimension,), first.rank)
        for index, other in enumerate(types[1:], 1):
            require(
                other.dtype is first.dtype
                and other.rank == first.rank
                and all(
                    d == self.dimension or _may_agree(a, b)
                    for d, (a, b) in enumerate(zip(first.shape, other.shape, strict=True))
                ),
                f"{self.name}: operand 0 is {first}, but operand {index} is {other}",
                f"the operands may differ in the size of dim {self.dimension} only",
            )
        return self._result_type(types)

    def _result_type(self, operands: list[TensorType]) -> TensorType:
        shape: list[Dim] = []
        for dim, sizes in enumerate(zip(*[t.shape for t in operands], strict=True)):
            known = [size for size in sizes if isinstance(size, int)]
            if dim != self.dimension:
                shape.append(known[0] if known else sizes[0])
                continue
            # Of sizes that vary, the bounds add up to the bound of their sum.
            total = sum(t.bounds[dim] for t in operands)
            shape.append(total if len(known) == len(sizes) else Symbol(total))
        return operands[0].with_shape(tuple(shape))

    def rule(self, *operands: TensorType) -> Rule:
        out = self._result_type(list(operands))
        builder = RuleBuilder(operands, (out,))
        return builder.pointwise(
            out.bounds, lambda dim: "whole" if dim == self.dimension else "pass"
        ).build()

    def reference(self, *operands: Array) -> Array:
        return np.concatenate(operands, axis=self.dimension)

    def work(self, operands: Types, results: Types, bodies: tuple[Work, ...] = ()) -> Work:
        return Work(bytes=moved(*operands, *results))


def _may_agree(a: Dim, b: Dim) -> bool:
    """Whether two dims can have one size at run time."""
    match a, b:
        case int(), Symbol(bound):
            return a <= bound
        case Symbol(bound), int():
            return b <= bound
        case Symbol(), Symbol():
            return True
    return a == b


@op("stablehlo.dynamic_slice")
class DynamicSlice(Op):
    """out[i..] = operand[start + i ..], with the starts clamped to the operand."""

    slice_sizes: tuple[int, ...]
    assembly = "$operands, sizes = $slice_sizes : $signature"

    def infer(self, operand: Type, *starts: Type) -> Type:
        operand_type = tensor_type(self.name, 0, operand)
        check_starts(self.name, operand_type, 1, starts)
        one_per_dim(self.name, "slice_sizes", self.slice_sizes, operand_type)
        check_inside(self.name, "slice_sizes", self.slice_sizes, operand_type)
        return operand_type.with_shape(self.slice_sizes)

    def rule(self, operand: TensorType, *starts: TensorType) -> Rule:
        out = operand.with_shape(self.slice_sizes)
        builder = RuleBuilder((operand, *starts), (out,))
        none = [None] * len(starts)
        for dim, size in enumerate(operand.bounds):
            cut = size != self.slice_sizes[dim]
            builder.factor([dim, *none], [dim], size, "whole" if cut else "pass", blocked=cut)
        return builder.build()

    def reference(self, operand: Array, *starts: Array) -> Array:
        return operand[window(operand.shape, self.slice_sizes, starts)]

    def work(self, operands: Types, results: Types, bodies: tuple[Work, ...] = ()) -> Work:
        return Work(bytes=2 * moved(*results) + moved(*operands[1:]))

    def local(self, operands: Types, results: Types) -> Op:
        out = results[0]
        assert isinstance(out, TensorType)
        return DynamicSlice(out.sizes)


def check_starts(name: str, operand: TensorType, first: int, starts: Types) -> None:
    """Refuse start indices that are not one integer of one type for each dim."""
    require(
        len(starts) == operand.rank,
        f"{name}: has {len(starts)} start indices for the {operand.rank} dims of {operand}",
        "give one for each dim",
    )
    for index, start in enumerate(starts, first):
        checked = one_of(name, index, start, "int uint")
        require(
            checked.rank == 0 and start is starts[0],
            f"{name}: operand {index} is {start}",
            "start indices are integers without dims, all of one type",
        )


def check_inside(name: str, what: str, sizes: tuple[int, ...], operand: TensorType) -> None:
    """Refuse sizes that are negative or larger than the operand's."""
    for dim, (size, room) in enumerate(zip(sizes, operand.bounds, strict=True)):
        require(
            0 <= size <= room,
            f"{name}: {what} of dim {dim} is {size}, but the operand's size is {room}",
            f"use a size from 0 to {room}",
        )


def window(
    shape: tuple[int, ...], sizes: tuple[int, ...], starts: tuple[Array, ...]
) -> tuple[slice, ...]:
    """Slices of these sizes, with the starts clamped to the shape."""
    clamped = [
        min(max(int(start), 0), room - size)
        for start, size, room in zip(starts, sizes, shape, strict=True)
    ]
    return tuple([slice(start, start + n) for start, n in zip(clamped, sizes, strict=True)])


@op("stablehlo.dynamic_update_slice")
class DynamicUpdateSlice(Op):
    """The operand with a slice replaced, the starts clamped to the operand."""

    assembly = "$operands : $signature"

    def infer(self, operand: Type, update: Type, *starts: Type) -> Type:
        operand_type, new = tensor_type(self.name, 0, operand), tensor_type(self.name, 1, update)
        require(
            operand_type.dtype is new.dtype and operand_type.rank == new.rank,
            f"{self.name}: operand 0 is {operand_type}, but operand 1 is {new}",
            "the update has the operand's element type and number of dims",
        )
        check_starts(self.name, operand_type, 2, starts)
        check_inside(self.name, "the update's size", new.bounds, operand_type)
        return operand_type

    def rule(self, operand: TensorType, update: TensorType, *starts: TensorType) -> Rule:
        builder = RuleBuilder((operand, update, *starts), (operand,))
        none = [None] * len(starts)
        for dim, (size, new) in enumerate(zip(operand.bounds, update.bounds, strict=True)):
            if size == new:
                builder.factor([dim, dim, *none], [dim], size)
            else:  # every shard of the operand reads its part of the replicated update
                builder.factor([dim, None, *none], [dim], size, needs_offset=True)
                builder.factor([None, dim, *none], [None], new, "whole")
        return builder.build()

    def reference(self, operand: Array, update: Array, *starts: Array) -> Array:
        out = operand.copy()
        out[window(operand.shape, update.shape, starts)] = update
        return out

    def work(self, operands: Types, results: Types, bodies: tuple[Work, ...] = ()) -> Work:
        # In place: only the slice is read and written.
        return Work(bytes=2 * moved(operands[1]) + moved(*operands[2:]))


OPS: tuple[type[Op], ...] = (Slice, Pad, Concatenate, DynamicSlice, DynamicUpdateSlice)
