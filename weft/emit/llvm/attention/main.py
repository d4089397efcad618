"""Common parts of the forward and backward kernels: tasks, addresses, key tiles, packing."""

from __future__ import annotations

from collections.abc import Callable

from weft.emit.llvm.attention.pack import PackedRows, TransposingPack, moved, pack_rows
from weft.emit.llvm.attention.part import Routine
from weft.emit.llvm.attention.scores import LOG2_E
from weft.emit.llvm.attention.tiling import ScratchPieces, Tiling, in_place
from weft.emit.llvm.writer.code import Writer
from weft.emit.llvm.writer.storage import memory_kind
from weft.emit.llvm.writer.vector import Vector, float_text
from weft.kernels.attention import Access, Attention


class TaskFunction:
    """Emits the task function and the parts (internal functions) that it calls."""

    def __init__(self, kernel: Attention, tiling: Tiling) -> None:
        self.kernel, self.tiling = kernel, tiling
        self.pieces = ScratchPieces(tiling.kind)
        self.parts: list[Writer] = []

    # Parts

    def part(self, label: str, params: list[str]) -> Routine:
        """A new part."""
        return Routine(self.name(label), params, self.tiling, self.pieces)

    def name(self, label: str) -> str:
        """The name of a part."""
        return f"{self.kernel.name}_{label}"

    def call(self, code: Writer, label: str, *given: tuple[str, str]) -> None:
        """Call a part with the scratch pointer and (type, value) pairs."""
        listed = ", ".join(["ptr %scratch", *(f"{type} {text}" for type, text in given)])
        code.do(f"call void @{self.name(label)}({listed})")

    def rows(self, access: Access) -> PackedRows:
        """The rows of an operand at one outer point."""
        dtype = self.kernel.dtype(access)
        return PackedRows(dtype, access.row, access.column, self.tiling.kind)

    def row_of(self, access: Access, depth: int) -> int:
        """The row stride of rows read in place, or packed."""
        if in_place(self.kernel, access):
            return access.row
        return self.tiling.padded(depth)

    def add_packed(self, label: str, access: Access, rows: int, depth: int) -> None:
        """Scratch and a part for rows that cannot be read in place."""
        if in_place(self.kernel, access):
            return
        self.pieces.add(label, rows * self.tiling.padded(depth))
        part = self.part(f"pack_{label}", ["ptr %from", "i64 %count"])
        lanes = self.tiling.lanes
        pack_rows(part.code, self.rows(access), part.place(label), "%count", lanes, depth)
        self.parts.append(part.code)

    def add_turn(self, access: Access) -> None:
        """A part that transposes a tile of rows: to[column][row] = scale * from[row][column]."""
        label, kind = self._turning(access), self.tiling.kind
        params = ["ptr %from", "ptr %to", "i64 %rows", "i64 %stride", "i64 %depth"]
        part = self.part(label, [*params, f"{kind} %scale"])
        if part.code.name in [made.name for made in self.parts]:
            return
        scale = part.v.splat(Vector("%scale", kind))
        self._across(part, access, "%to", "%stride", lambda x: part.v.mul(x, scale)).columns(
            "%depth"
        )
        self.parts.append(part.code)

    def _turning(self, access: Access) -> str:
        """Operands of the same layout share a transpose function."""
        columns = access.column if access.row else 0
        return f"turn_{self.kernel.dtype(access)}_{columns}"

    def turn(
        self, code: Writer, access: Access, at: str, to: str, rows: str, depth: int, scale: float
    ) -> None:
        """Transpose a tile of rows."""
        number = float_text(scale, self.tiling.kind)
        given = (("ptr", at), ("ptr", to), ("i64", rows), ("i64", str(access.row)))
        self.call(
            code, self._turning(access), *given, ("i64", str(depth)), (self.tiling.kind, number)
        )

    def _across(
        self,
        part: Routine,
        access: Access,
        to: str,
        stride: str,
        change: Callable[[Vector], Vector],
    ) -> TransposingPack:
        last = part.code.let("sub i64 %rows, 1")
        vectors = self.tiling.vectors
        return TransposingPack(part.v, self.rows(access), to, last, stride, vectors, change)

    def add_pairs(self) -> None:
        """Scratch and parts for tiles of bias and mask, in the layout of scores."""
        t, k = self.tiling, self.kernel
        for label, access in k.pairs.items():
            self.pieces.add(label, t.queries * t.padded(t.keys))
            part = self.part(f"pack_{label}", ["ptr %from", "i64 %rows", "i64 %count"])
            change = self._hides(part) if label == "mask" else self._in_units(part)
            across = self._across(part, access, part.place(label), str(access.row), change)
            across.columns("%count")
            self.parts.append(part.code)

    def _in_units(self, part: Routine) -> Callable[[Vector], Vector]:
        """A bias in the units of scores."""
        unit = part.constant(self.kernel.bias_scale * LOG2_E)
        return lambda x: part.v.mul(x, unit)

    def _hides(self, part: Routine) -> Callable[[Vector], Vector]:
        """1 where a mask hides a key."""
        assert self.kernel.mask is not None
        one = part.constant(1.0)
        return (lambda x: x) if self.kernel.mask.hides else (lambda x: part.v.sub(one, x))

    # Inside of the task function

    def place(self, code: Writer, label: str) -> str:
        """The address of a scratch piece."""
        return code.let(f"getelementptr i8, ptr %scratch, i64 {self.pieces.places[label]}")

    def split(self, code: Writer, index: str, sizes: tuple[int, ...]) -> list[str]:
        """A linear index as one index along each size, the last the fastest."""
        indices: list[str] = []
        for size in reversed(sizes):
            indices.insert(0, code.let(f"urem i64 {index}, {size}"))
            index = code.let(f"udiv i64 {index}, {size}")
        return indices

    def base(self, code: Writer, access: Access, outer: list[str]) -> str:
        """The address of an operand at an outer point."""
        place = code.let(f"getelementptr ptr, ptr %operands, i64 {access.operand}")
        base = code.let(f"load ptr, ptr {place}")
        kind = memory_kind(self.kernel.dtype(access))
        if access.offset:
            base = code.let(f"getelementptr {kind}, ptr {base}, i64 {access.offset}")
        for index, stride in zip(outer, access.outer, strict=True):
            if stride:
                base = moved(code, base, index, stride, kind)
        return base

    def row(self, code: Writer, access: Access, base: str, index: str) -> str:
        """The address of a row."""
        return moved(code, base, index, access.row, memory_kind(self.kernel.dtype(access)))

    def tile(self, code: Writer, label: str, access: Access, at: str, count: str) -> str:
        """A tile's rows: in place, or packed into scratch."""
        if in_place(self.kernel, access):
            return at
        self.call(code, f"pack_{label}", ("ptr", at), ("i64", count))
        return self.place(code, label)

    def pairs(
        self, code: Writer, bases: dict[str, str], query: str, key: str, rows: str, count: str
    ) -> None:
        """Pack bias and mask of a tile into scratch."""
        k = self.kernel
        for label, access in k.pairs.items():
            at = self.row(code, access, bases[label], query)
            at = moved(code, at, key, access.column, memory_kind(k.dtype(access)))
            self.call(code, f"pack_{label}", ("ptr", at), ("i64", rows), ("i64", count))

    @property
    def height(self) -> int:
        """The granularity of skipped keys: a register block."""
        return self.tiling.key_rows

    def keys_seen(self, code: Writer, aligned: str, rows: str) -> tuple[str, str]:
        """The keys visible to some query: begin and end, in whole register blocks."""
        k, height = self.kernel, self.height
        begin, end = "0", str(k.keys)
        if k.window.left is not None:
            begin = code.let(f"sub nsw i64 {aligned}, {k.window.left}")
            # Rounded outwards to whole blocks, whose height is a power of two.
            begin = code.let(f"and i64 {most(code, begin, '0')}, {-height}")
        if k.window.right is not None:
            last = code.let(f"add nsw i64 {aligned}, {rows}")
            last = code.let(f"add nsw i64 {last}, {k.window.right + height - 1}")
            end = least(code, code.let(f"and i64 {last}, {-height}"), end)
        return begin, end


def least(code: Writer, a: str, b: str) -> str:
    """The smaller of two i64."""
    return code.call("i64", "llvm.smin.i64", ("i64", a), ("i64", b))


def most(code: Writer, a: str, b: str) -> str:
    """The larger of two i64."""
    return code.call("i64", "llvm.smax.i64", ("i64", a), ("i64", b))
