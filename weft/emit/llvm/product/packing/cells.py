"""Packed cells: one element, or in VNNI form several consecutive ones along K.

Dot-product instructions (VNNI, AMX) take two or four small elements in one 32-bit lane: those of
steps 4k, 4k+1, 4k+2 and 4k+3 of K, for example, zero-padded past the end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from weft.emit.llvm.product.blocking.blocking import ProductShape
from weft.emit.llvm.product.points import FactorPoint, flat_lanes, flat_point
from weft.emit.llvm.product.product import Product, required_steps
from weft.emit.llvm.product.values import ProductValues
from weft.emit.llvm.writer.code import Writer
from weft.emit.llvm.writer.nest import plus, smaller, times
from weft.emit.llvm.writer.vector import Vector, Vectors, vector_type
from weft.ir.types import DTYPES, DType
from weft.kernels.kernel import Load

_RUN = 8  # contiguous elements that justify a separate loop


class Cells:
    """The cells of one side, in the packing function."""

    def __init__(
        self,
        product: Product,
        shape: ProductShape,
        code: Writer,
        operands: Sequence[str],
        *,
        lhs: bool,
    ) -> None:
        self.product, self.shape, self.code, self.operands = product, shape, code, operands
        contract = product.contract
        self.side = contract.lhs if lhs else contract.rhs
        self.element: DType = contract.held
        if shape.group > 1:
            self.element = DTYPES[f"i{32 // shape.group}"]
        # vpdpbusd takes one side unsigned: 128 is added to signed bytes, and corrected in the sums.
        self.flip = lhs and shape.offset
        self.steps = product.size(product.k)
        self.whole = self.steps == shape.k * shape.group

    def side_by_side(self) -> int:
        """The number of innermost K factors that are contiguous; 0 if too few."""
        product, steps = self.product, self.product.kernel.steps
        loads = [
            s for n in required_steps(steps, [self.side], ()) if isinstance(s := steps[n], Load)
        ]
        spanning = [load.at for load in loads if any(load.at.strides[f] for f in product.k)]
        count = len(product.k)
        while count > 1 and any(product.stride(at, product.k[-count:]) != 1 for at in spanning):
            count -= 1
        # Shorter runs spend their time in the loop's own overhead.
        long = product.size(product.k[-count:]) >= _RUN
        return count if len(product.k) > 1 and long else 0

    def at(self, v: Vectors, point: FactorPoint, mask: Vector | None) -> Vector:
        """Cells of one element each, at a point."""
        values = ProductValues(self.product.kernel, v, self.operands)
        return values.side(self.side, point, self.element, mask)

    def across(self, v: Vectors, point: FactorPoint, step: str, mask: Vector | None) -> Vector:
        """The cells of a step, with rows or columns along lanes."""
        code, group = self.code, self.shape.group
        values = ProductValues(self.product.kernel, v, self.operands)
        factors, k = self.product.kernel.factors, self.product.k
        if group == 1:
            there = point | flat_point(code, factors, k, step)
            return values.side(self.side, there, self.element, mask)
        cells: Vector | None = None
        for n in range(group):
            number = plus(code, times(code, step, group), n)
            # Clamped, not masked: the load stays in bounds, and the select below zeroes what it
            # read.
            kept = number if self.whole else smaller(code, number, self.steps - 1)
            there = point | flat_point(code, factors, k, kept)
            value = v.cast("zext", values.side(self.side, there, self.element, mask), "i32")
            if not self.whole:
                inside = Vector(code.let(f"icmp slt i64 {number}, {self.steps}"), "i1")
                value = v.select(v.splat(inside), value, v.constant(0, "i32"))
            value = v.binary("shl", value, v.constant(n * self.element.bits, "i32"))
            cells = value if cells is None else v.binary("or", cells, value)
        assert cells is not None
        return self._flipped(v, cells)

    def along(self, v: Vectors, point: FactorPoint, step: str, mask: Vector | None) -> Vector:
        """The cells of as many steps as there are lanes, from `step` on; zero-padded."""
        code, group = self.code, self.shape.group
        factors, k = self.product.kernel.factors, self.product.k
        if group == 1:
            values = ProductValues(self.product.kernel, v, self.operands)
            there = point | flat_lanes(v, factors, k, step)
            return values.side(self.side, there, self.element, mask)
        wide = Vectors(code, v.width * group)
        values = ProductValues(self.product.kernel, wide, self.operands)
        number = times(code, step, group)
        inside: Vector | None = None
        if self.steps % wide.width or not self.whole:
            inside = wide.first(code.let(f"sub nsw i64 {self.steps}, {number}"))
        there = point | flat_lanes(wide, factors, k, number)
        value = values.side(self.side, there, self.element, inside)
        if inside is not None:
            value = wide.select(inside, value, wide.constant(0, value.kind))
        cells = code.let(f"bitcast {value.typed} to {vector_type('i32', v.width)}")
        return self._flipped(v, Vector(cells, "i32", v.width))

    def _flipped(self, v: Vectors, cells: Vector) -> Vector:
        if not self.flip:
            return cells
        # Flipping the sign bit is adding 128 modulo 256, in all four bytes at once.
        return v.binary("xor", cells, v.constant(int.from_bytes(b"\x80" * 4, signed=True), "i32"))


def in_chunks(
    v: Vectors,
    begin: str,
    end: str,
    body: Callable[[str, Vector | None], None],
    *,
    whole: bool,
) -> None:
    """Emit a body for vectors of begin..end-1, the last one masked unless they divide."""
    code = v.code
    if whole:
        with code.loop(begin, end, v.width) as chunk:
            body(chunk.index, None)
        return
    count = code.let(f"sub nsw i64 {end}, {begin}")
    rest = code.let(f"urem i64 {count}, {v.width}")
    edge = code.let(f"sub nsw i64 {end}, {rest}")
    with code.loop(begin, edge, v.width) as chunk:
        body(chunk.index, None)
    with code.when(code.let(f"icmp ne i64 {rest}, 0")):
        body(edge, v.first(rest))
