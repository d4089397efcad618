"""CHLO's elementwise ops with numpy-style broadcasting."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, ClassVar

import numpy as np

from weft.errors import WeftError
from weft.ir.attrs import enum
from weft.ir.check import require, tensor_type
from weft.ir.op import Op, infer, op
from weft.ir.rule import Rule, RuleBuilder
from weft.ir.types import Array, Dim, Shape, TensorType, Type, Types
from weft.ir.work import Work
from weft.ops.elementwise import convert, pointwise, special, transcendental

DimMap = tuple[int, ...]  # for each dim of an operand, the dim of the result that it runs along


class Broadcasting(Op):
    """An op that broadcasts its operands to one shape and applies an elementwise op."""

    __slots__ = ()
    element: ClassVar[Op]
    arity: ClassVar[int] = 2
    broadcast_dimensions: tuple[int, ...] | None = None
    assembly = "$operands$fields : $signature"
    elementwise = True

    def applied(self) -> Op:
        """The elementwise op."""
        return self.element

    def infer(self, *operands: Type) -> Type:
        require(
            len(operands) == self.arity,
            f"{self.name}: takes {self.arity} operands, {len(operands)} given",
            "see the op's entry in CHLO's documentation",
        )
        types = [tensor_type(self.name, n, t) for n, t in enumerate(operands)]
        ranks = [t.rank for t in types]
        dims = self.broadcast_dimensions
        if dims is not None:
            _check_dims(self.name, dims, min(ranks), max(ranks))
        shape = self.shape(types)
        try:
            (out,) = infer(self.applied(), tuple(t.with_shape(shape) for t in types))
        except WeftError as error:
            # The elementwise op's own error, under the name that the program has.
            message = error.message.replace(self.applied().name, self.name)
            raise WeftError(message, help=error.help) from None
        return out

    def places(self, ranks: list[int]) -> list[DimMap]:
        """The last dims of the result for each operand, or those that the op names."""
        rank = max(ranks)
        dims = self.broadcast_dimensions
        return [
            dims if dims is not None and own < rank else tuple(range(rank - own, rank))
            for own in ranks
        ]

    def shape(self, operands: list[TensorType]) -> Shape:
        """The common broadcast shape of all operands."""
        sizes: list[Dim] = [1] * max(t.rank for t in operands)
        for type, place in zip(operands, self.places([t.rank for t in operands]), strict=True):
            for size, dim in zip(type.shape, place, strict=True):
                require(
                    size in (1, sizes[dim]) or sizes[dim] == 1,
                    f"{self.name}: dim {dim} of the result is {sizes[dim]} in one operand and "
                    f"{size} in another: {', '.join(map(str, operands))}",
                    "sizes must be equal, or 1",
                )
                sizes[dim] = size if sizes[dim] == 1 else sizes[dim]
        return tuple(sizes)

    def rule(self, *operands: TensorType) -> Rule:
        out = operands[0].with_shape(self.shape(list(operands)))
        builder = RuleBuilder(operands, (out,))
        places = self.places([t.rank for t in operands])
        for dim, size in enumerate(out.bounds):
            own = [
                place.index(dim) if dim in place and type.bounds[place.index(dim)] == size else None
                for type, place in zip(operands, places, strict=True)
            ]
            # An operand of size 1 along the dim has no such factor: every device needs its one
            # element.
            builder.factor(own, [dim], size)
        return builder.build()

    def reference(self, *arrays: Array) -> Array:
        rank = max(a.ndim for a in arrays)
        aligned = []
        for array, place in zip(arrays, self.places([a.ndim for a in arrays]), strict=True):
            sizes = [1] * rank
            for size, dim in zip(array.shape, place, strict=True):
                sizes[dim] = size
            aligned.append(array.reshape(sizes))
        return np.asarray(self.applied().reference(*np.broadcast_arrays(*aligned)))

    def work(self, operands: Types, results: Types, bodies: tuple[Work, ...] = ()) -> Work:
        return self.applied().work(operands, results)


def _check_dims(name: str, dims: tuple[int, ...], low: int, high: int) -> None:
    require(
        len(dims) == low,
        f"{name}: broadcast_dimensions are {list(dims)}, but the smaller operand has {low} dims",
        "name one dim of the result for each dim of the smaller operand",
    )
    require(
        all(0 <= d < high for d in dims) and all(a < b for a, b in pairwise(dims)),
        f"{name}: broadcast_dimensions are {list(dims)}, but the result has {high} dims",
        f"name dims from 0 to {high - 1}, in rising order",
    )


def broadcasting(name: str, element: Op) -> type[Broadcasting]:
    """One row: an elementwise op of two operands, with broadcasting."""
    title = "".join(part.capitalize() for part in name.rpartition(".")[2].split("_"))
    members: dict[str, object] = {
        "__doc__": f"out = {element.name}(lhs, rhs), both stretched to one shape.",
        "__annotations__": {"broadcast_dimensions": tuple[int, ...] | None},
        "broadcast_dimensions": None,
        "element": element,
    }
    return op(name)(type(title, (Broadcasting,), members))


BroadcastAdd = broadcasting("chlo.broadcast_add", pointwise.Add())
BroadcastAnd = broadcasting("chlo.broadcast_and", pointwise.And())
BroadcastAtan2 = broadcasting("chlo.broadcast_atan2", transcendental.Atan2())
BroadcastComplex = broadcasting("chlo.broadcast_complex", convert.Complex())
BroadcastDivide = broadcasting("chlo.broadcast_divide", pointwise.Divide())
BroadcastMaximum = broadcasting("chlo.broadcast_maximum", pointwise.Maximum())
BroadcastMinimum = broadcasting("chlo.broadcast_minimum", pointwise.Minimum())
BroadcastMultiply = broadcasting("chlo.broadcast_multiply", pointwise.Multiply())
BroadcastNextAfter = broadcasting("chlo.broadcast_next_after", special.NextAfter())
BroadcastOr = broadcasting("chlo.broadcast_or", pointwise.Or())
BroadcastPolygamma = broadcasting("chlo.broadcast_polygamma", special.Polygamma())
BroadcastPower = broadcasting("chlo.broadcast_power", pointwise.Power())
BroadcastRemainder = broadcasting("chlo.broadcast_remainder", pointwise.Remainder())
BroadcastShiftLeft = broadcasting("chlo.broadcast_shift_left", pointwise.ShiftLeft())
BroadcastShiftRightArithmetic = broadcasting(
    "chlo.broadcast_shift_right_arithmetic", pointwise.ShiftRightArithmetic()
)
BroadcastShiftRightLogical = broadcasting(
    "chlo.broadcast_shift_right_logical", pointwise.ShiftRightLogical()
)
BroadcastSubtract = broadcasting("chlo.broadcast_subtract", pointwise.Subtract())
BroadcastXor = broadcasting("chlo.broadcast_xor", pointwise.Xor())
BroadcastZeta = broadcasting("chlo.broadcast_zeta", special.Zeta())

_DIRECTIONS = ("EQ", "NE", "GE", "GT", "LE", "LT")
_TYPES = ("NOTYPE", "FLOAT", "TOTALORDER", "SIGNED", "UNSIGNED")


@op("chlo.broadcast_compare")
class BroadcastCompare(Broadcasting):
    """out = lhs compared with rhs, both broadcast to one shape."""

    comparison_direction: Annotated[str, enum("comparison_direction", *_DIRECTIONS, dialect="chlo")]
    broadcast_dimensions: tuple[int, ...] | None = None
    compare_type: Annotated[str, enum("comparison_type", *_TYPES, dialect="chlo")] | None = None

    def applied(self) -> Op:
        return pointwise.Compare(self.comparison_direction, self.compare_type)


@op("chlo.broadcast_select")
class BroadcastSelect(Broadcasting):
    """out = on_true where pred, else on_false, all three broadcast to one shape."""

    element = pointwise.Select()
    arity = 3


OPS: tuple[type[Op], ...] = (
    BroadcastAdd,
    BroadcastAnd,
    BroadcastAtan2,
    BroadcastComplex,
    BroadcastDivide,
    BroadcastMaximum,
    BroadcastMinimum,
    BroadcastMultiply,
    BroadcastNextAfter,
    BroadcastOr,
    BroadcastPolygamma,
    BroadcastPower,
    BroadcastRemainder,
    BroadcastShiftLeft,
    BroadcastShiftRightArithmetic,
    BroadcastShiftRightLogical,
    BroadcastSubtract,
    BroadcastXor,
    BroadcastZeta,
    BroadcastCompare,
    BroadcastSelect,
)
