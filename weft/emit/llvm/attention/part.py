"""Routines of attention kernels: internal functions on a thread's scratch."""

from __future__ import annotations

from weft.emit.llvm.attention.exp import exp2_below
from weft.emit.llvm.attention.pack import moved
from weft.emit.llvm.attention.product import write_first
from weft.emit.llvm.attention.tiling import ScratchPieces, Tiling
from weft.emit.llvm.writer.code import Writer
from weft.emit.llvm.writer.vector import Vector, Vectors


class Routine:
    """A function whose first parameter is the scratch pointer."""

    def __init__(self, name: str, params: list[str], tiling: Tiling, pieces: ScratchPieces) -> None:
        self.code = Writer(name, ["ptr noalias %scratch", *params], internal=True)
        self.tiling = tiling
        self.pieces = pieces
        self.v = Vectors(self.code, tiling.lanes)
        self.one = Vectors(self.code, 1)

    @property
    def kind(self) -> str:
        """The compute type."""
        return self.tiling.kind

    def constant(self, value: float) -> Vector:
        """A splat constant."""
        return self.v.constant(value, self.kind)

    def exp2(self, x: Vector, least: int = -126) -> Vector:
        """2^x for x <= 0; flushed to 0 below 2^least."""
        return exp2_below(self.v, x, scaling=self.tiling.scaling, least=least)

    def place(self, name: str, index: str | int = 0, stride: int = 1) -> str:
        """The address of an element of a scratch piece."""
        base = self.code.let(f"getelementptr i8, ptr %scratch, i64 {self.pieces.places[name]}")
        if isinstance(index, int):
            return self.v.at(base, index * stride, self.kind)
        return moved(self.code, base, index, stride, self.kind)

    def spread(self, name: str, index: str, more: int) -> Vector:
        """An element of a scratch piece, broadcast."""
        return self.v.splat(
            self.one.load(self.v.at(self.place(name, index), more, self.kind), self.kind)
        )

    def each(self, name: str, index: str | int = 0) -> list[Vector]:
        """Load one number for each query of a tile, as vectors."""
        begin = self.place(name, index)
        steps = range(0, self.tiling.queries, self.tiling.lanes)
        return [self.v.load(self.v.at(begin, n, self.kind), self.kind) for n in steps]

    def keep(self, name: str, values: list[Vector], index: str | int = 0) -> None:
        """Store one number for each query of a tile."""
        begin = self.place(name, index)
        for n, value in enumerate(values):
            self.v.store(value, self.v.at(begin, n * self.tiling.lanes, self.kind))

    def named(self, texts: tuple[str, ...]) -> list[Vector]:
        """Loop-carried variables as vectors."""
        return [Vector(text, self.kind, self.tiling.lanes) for text in texts]

    def either(self, a: Vector, one: str, b: Vector, other: str) -> Vector:
        """A phi of two blocks' values."""
        text = f"phi {a.type} [{a.text}, %{one}], [{b.text}, %{other}]"
        return Vector(self.code.let(text), a.kind, a.width)


def write_vector(
    part: Routine, x: Vector, target: str, begin: int, depth: int, stride: int
) -> None:
    """Store contiguous columns of a row at an address, masked at the end."""
    v, left = part.v, depth - begin
    if stride == 1:
        write_first(v, x, v.at(target, begin, x.kind), left)
        return
    for n in range(min(left, v.width)):
        one = Vector(part.code.let(f"extractelement {x.typed}, i64 {n}"), x.kind)
        part.one.store(one, v.at(target, (begin + n) * stride, x.kind))


def carried(values: list[Vector]) -> list[tuple[str, str]]:
    """Vectors as loop-carried variables."""
    return [(x.type, x.text) for x in values]
