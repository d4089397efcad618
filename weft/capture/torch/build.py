"""The builder of a module's body from ATen ops."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import field
from typing import Any, TypeAlias

import numpy as np

from weft.capture.torch.dtypes import TorchOperand, computed_in, promoted
from weft.capture.torch.overlaps import matmul_precision
from weft.errors import Unsupported
from weft.ir.dense import Dense
from weft.ir.location import UNKNOWN, Location
from weft.ir.module import Node, Region, Value, apply
from weft.ir.op import Op
from weft.ir.rule import Combine
from weft.ir.types import BOOL, F32, I64, Array, DType, TensorType
from weft.ops.combiners import combiner
from weft.ops.contract import DotDims, DotGeneral
from weft.ops.elementwise.convert import Convert, Real
from weft.ops.elementwise.pointwise import Compare, Select
from weft.ops.reduce import Reduce
from weft.ops.shape import BroadcastInDim, Constant, Iota, Reshape, Transpose
from weft.ops.slicing import Concatenate, Pad, Slice
from weft.records import dataclass

LoweredResults: TypeAlias = "Value | tuple[Value | None, ...]"
Sizes: TypeAlias = Sequence[int]


def type_of(value: Value) -> TensorType:
    """The tensor type of a value."""
    assert isinstance(value.type, TensorType), f"{value.type} is not a tensor"
    return value.type


def shape_of(value: Value) -> tuple[int, ...]:
    """The sizes of a value."""
    return type_of(value).sizes


def dtype_of(value: Value) -> DType:
    """The element type of a value."""
    return type_of(value).dtype


def dim_of(dim: int, rank: int) -> int:
    """A dim with negative ones resolved; a scalar counts as rank 1, as in PyTorch."""
    return dim % max(rank, 1)


def dims_of(dims: Sequence[int] | int | None, rank: int) -> tuple[int, ...]:
    """Dims in order; all dims if none is named."""
    if dims is None or (not isinstance(dims, int) and not dims):
        return tuple(range(rank))
    listed = (dims,) if isinstance(dims, int) else dims
    return tuple(sorted(dim_of(dim, rank) for dim in listed if rank))


@dataclass
class Build:
    """The nodes of one region, and the ATen op that is being lowered."""

    nodes: list[Node] = field(default_factory=list)
    loc: Location = UNKNOWN
    target: str = ""  # aten.add.Tensor
    outs: tuple[TensorType | None, ...] = ()  # its result types by PyTorch's shape inference
    used: frozenset[int] = frozenset()  # the results that have uses
    seed_index: int = 0  # the argument that a seed of random numbers would be
    seed_value: Value | None = None  # that argument, once an op has asked for it
    draws: int = 0  # ops that have drawn random numbers

    @property
    def out(self) -> TensorType:
        """The type of the first result."""
        found = self.outs[0]
        assert found is not None, f"{self.target} has a result"
        return found

    def refuse(self, what: str, help: str) -> Unsupported:
        """The error for an op, or a form of it, without a lowering."""
        return Unsupported(f"{self.target}: {what}", help=help, loc=self.loc, node=self.loc.name)

    # Nodes

    def all(self, op: Op, *operands: Value, regions: tuple[Region, ...] = ()) -> tuple[Value, ...]:
        """Apply an op with any number of results."""
        node = apply(op, *operands, regions=regions, loc=self.loc)
        self.nodes.append(node)
        return node.results

    def op(self, op: Op, *operands: Value, regions: tuple[Region, ...] = ()) -> Value:
        """Apply an op with one result."""
        return self.all(op, *operands, regions=regions)[0]

    # Constants

    def constant(self, array: Array) -> Value:
        """A constant."""
        return self.op(Constant(Dense(array)))

    def splat(self, number: object, type: TensorType) -> Value:
        """A splat constant."""
        held = type.dtype.numpy
        if isinstance(number, complex) and not type.dtype.is_complex:
            number = number.real
        if type.dtype.is_integer and isinstance(number, int):  # wraps around, as in PyTorch
            scalar = np.asarray(number & 0xFFFFFFFFFFFFFFFF, np.uint64).astype(held)
        else:
            scalar = np.asarray(number).astype(held)
        return self.op(Constant(Dense(scalar.reshape(()), type)))

    def like(self, value: Value, number: object) -> Value:
        """A number at every element of a value's type."""
        return self.splat(number, type_of(value))

    def iota(self, dim: int, shape: Sizes, dtype: DType = I64) -> Value:
        """The index along a dim."""
        return self.op(Iota(dim, TensorType(tuple(shape), dtype)))

    def seed(self) -> Value:
        """The argument that random numbers depend on: a number for each run."""
        if self.seed_value is None:
            self.seed_value = Value(TensorType((), I64), None, self.seed_index)
        return self.seed_value

    # Types and shapes

    def convert(self, value: Value, dtype: DType) -> Value:
        """A conversion with C's semantics."""
        source = type_of(value)
        if source.dtype is dtype:
            return value
        if source.dtype.is_complex and dtype.kind != "bool" and not dtype.is_complex:
            # PyTorch drops the imaginary part, with a warning.
            value = self.op(Real(), value)
            return self.convert(value, dtype)
        if dtype.kind == "bool":  # NaN is true
            return self.op(Compare("NE"), value, self.like(value, 0))
        if source.dtype.is_float and dtype.is_integer and dtype.bits < 32:  # wraps
            value = self.op(Convert(source.with_dtype(I64)), value)
        return self.op(Convert(source.with_dtype(dtype)), value)

    def value(self, operand: TorchOperand, dtype: DType) -> Value:
        """A tensor, or a number as a rank-0 tensor, in an element type."""
        if isinstance(operand, Value):
            return self.convert(operand, dtype)
        return self.splat(operand, TensorType((), dtype))

    def reshape(self, value: Value, shape: Sizes) -> Value:
        """The same elements in another shape."""
        source = type_of(value)
        wanted = tuple(shape)
        if value.node is not None and isinstance(value.node.op, Reshape):
            value = value.node.operands[0]
        if shape_of(value) == wanted:
            return value
        return self.op(Reshape(source.with_shape(wanted)), value)

    def transpose(self, value: Value, order: Sizes) -> Value:
        """The value with its dims in another order."""
        wanted = tuple(order)
        if wanted == tuple(range(len(wanted))):
            return value
        return self.op(Transpose(wanted), value)

    def move(self, value: Value, source: int, to: int) -> Value:
        """The value with one dim moved."""
        order = [d for d in range(type_of(value).rank) if d != source]
        order.insert(to, source)
        return self.transpose(value, order)

    def spread(self, value: Value, shape: Sizes, dims: Sizes) -> Value:
        """broadcast_in_dim: the value's dims become these dims of a shape."""
        source, wanted = type_of(value), tuple(shape)
        if source.sizes == wanted:
            return value
        pairs = [(s, d) for s, d in zip(source.sizes, dims, strict=True) if s == wanted[d]]
        value = self.reshape(value, [s for s, _ in pairs])
        places = tuple([d for _, d in pairs])
        return self.op(BroadcastInDim(places, source.with_shape(wanted)), value)

    def broadcast(self, value: Value, shape: Sizes) -> Value:
        """The value broadcast to a larger shape, dims aligned at the end."""
        rank = type_of(value).rank
        return self.spread(value, shape, range(len(shape) - rank, len(shape)))

    def slice(self, value: Value, dim: int, start: int, stop: int, step: int = 1) -> Value:
        """Every `step`th element along a dim."""
        sizes = shape_of(value)
        if (start, stop, step) == (0, sizes[dim], 1):
            return value
        starts, stops, steps = [0] * len(sizes), list(sizes), [1] * len(sizes)
        starts[dim], stops[dim], steps[dim] = start, max(start, stop), step
        return self.op(Slice(tuple(starts), tuple(stops), tuple(steps)), value)

    def crop(self, value: Value, shape: Sizes) -> Value:
        """The leading part of a value, of these sizes."""
        wanted, rank = tuple(shape), len(shape)
        if shape_of(value) == wanted:
            return value
        return self.op(Slice((0,) * rank, wanted, (1,) * rank), value)

    def pad(
        self, value: Value, low: Sizes, high: Sizes, fill: object = 0, inner: Sizes = ()
    ) -> Value:
        """The value padded by one number; negative padding crops."""
        if not any((*low, *high, *inner)):
            return value
        given = type_of(value)
        number = self.splat(fill, given.with_shape(()))
        between = tuple(inner) or (0,) * given.rank
        return self.op(Pad(tuple(low), tuple(high), between), value, number)

    def join(self, values: Sequence[Value], dim: int) -> Value:
        """Concatenation along a dim."""
        return values[0] if len(values) == 1 else self.op(Concatenate(dim), *values)

    # Arithmetic

    def operands(self, *given: TorchOperand, dtype: DType | None = None) -> tuple[Value, ...]:
        """Operands of an elementwise op: one element type, one shape."""
        common = dtype or promoted(*given)
        values = [self.value(each, common) for each in given]
        shape = np.broadcast_shapes(*map(shape_of, values))
        return tuple([self.broadcast(value, shape) for value in values])

    def compare(self, direction: str, left: Value, right: Value) -> Value:
        """A comparison of values of one type."""
        return self.op(Compare(direction), left, right)

    def select(self, where: Value, left: Value, right: Value) -> Value:
        """Elementwise select; operands of one shape, or rank 0."""
        shape = np.broadcast_shapes(*map(shape_of, (where, left, right)))
        given = [self.broadcast(value, shape) for value in (where, left, right)]
        return self.op(Select(), *given)

    def reduce(self, value: Value, dims: Sizes, combine: Combine, start: object) -> Value:
        """A reduction along dims; narrow floats accumulate in f32 and are rounded once."""
        # The gradient of a bias sums the rows of a merged matrix: over the dims as they were
        # before, devices with a split batch sum what they have.
        if type_of(value).rank == 2 and set(dims) == {0}:
            value = self.unmerged(value)
            dims = range(type_of(value).rank - 1)
        operand_type = type_of(value)
        held = computed_in(operand_type.dtype) if combine in ("add", "mul") else operand_type.dtype
        value = self.convert(value, held)
        folded = set(dims)
        sizes = tuple([size for dim, size in enumerate(operand_type.sizes) if dim not in folded])
        if not folded:
            return self.convert(value, operand_type.dtype)
        type = TensorType(sizes, held)
        zero = self.splat(start, type.with_shape(()))
        region = combiner(combine, type)
        made = self.op(Reduce(tuple(sorted(folded)), (type,)), value, zero, regions=(region,))
        return self.convert(made, operand_type.dtype)

    def keep_dims(self, value: Value, sizes: Sizes, dims: Sizes, keepdim: bool) -> Value:
        """The result of a reduction, with reduced dims of size 1 if `keepdim`."""
        if not keepdim:
            return value
        return self.reshape(value, [1 if d in dims else size for d, size in enumerate(sizes)])

    def dot(self, left: Value, right: Value, dims: DotDims, dtype: DType) -> Value:
        """A dot_general that accumulates in f32 at least, of PyTorch's precision of products."""
        a, b = shape_of(left), shape_of(right)
        batch = [a[d] for d in dims.lhs_batching_dimensions]
        lone = {*dims.lhs_batching_dimensions, *dims.lhs_contracting_dimensions}
        other = {*dims.rhs_batching_dimensions, *dims.rhs_contracting_dimensions}
        free = [s for d, s in enumerate(a) if d not in lone]
        free += [s for d, s in enumerate(b) if d not in other]
        exact = dtype is not F32 or matmul_precision() == "highest"
        precision = None if exact else ("HIGH", "HIGH")
        made = DotGeneral(dims, TensorType((*batch, *free), dtype), precision)
        return self.op(made, left, right)

    def unmerged(self, value: Value) -> Value:
        """A matrix whose rows a reshape has merged from several dims, with these dims apart.

        PyTorch's linear layers view their inputs as matrices. A batch that is not the first of the
        merged dims could then not be split: the pieces of the rows would be strided.
        """
        if value.node is None or not isinstance(value.node.op, Reshape):
            return value
        source = value.node.operands[0]
        sizes, (rows, columns) = shape_of(source), shape_of(value)
        for rank in range(2, len(sizes) + 1):
            if math.prod(sizes[:rank]) == rows and math.prod(sizes[rank:]) == columns:
                apart = [size for size in sizes[:rank] if size != 1]
                return self.reshape(source, (*apart, columns)) if len(apart) > 1 else value
        return value

    def matmul(self, left: Value, right: Value, dtype: DType) -> Value:
        """A matrix product, or a batch of them."""
        rank = type_of(left).rank
        batch = tuple(range(rank - 2))
        return self.dot(left, right, DotDims(batch, batch, (rank - 1,), (rank - 2,)), dtype)

    def is_nan(self, value: Value) -> Value:
        """Whether elements are NaN; false for integers."""
        if dtype_of(value).is_float or dtype_of(value).is_complex:
            return self.compare("NE", value, value)
        return self.like(self.convert(value, BOOL), False)


AtenLowering: TypeAlias = Any  # (build, *args, **kwargs) -> Results
