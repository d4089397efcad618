"""Lanes a few elements apart: contiguous vectors and shuffles instead of gathers and scatters."""

from __future__ import annotations

from weft.emit.llvm.writer import storage
from weft.emit.llvm.writer.nest import plus
from weft.emit.llvm.writer.storage import Held
from weft.emit.llvm.writer.vector import BITS, Vector, Vectors
from weft.ir.types import DType

_MOST = 4  # the stride from which on most of what is loaded would be unused
_REGISTER = 512  # bits


def is_near(v: Vectors, stride: int, dtype: DType) -> bool:
    """Whether lanes with that stride are loaded and stored by shuffles."""
    if dtype.is_complex or not 1 < stride <= _MOST:
        return False
    kind = storage.memory_kind(dtype)
    plain = kind == storage.register_kind(dtype) and BITS[kind] >= 32
    return plain and v.width % (_REGISTER // BITS[kind]) == 0


def load_apart(v: Vectors, base: str, first: str, stride: int, dtype: DType) -> Held:
    """Load the elements `first`, `first + stride`, ..., and nothing behind the last one."""
    kind = storage.memory_kind(dtype)
    part = Vectors(v.code, _REGISTER // BITS[kind])
    parts: list[Vector] = []
    for chunk in range(0, v.width, part.width):
        start = plus(v.code, first, chunk * stride)
        found: Vector | None = None
        for begin, lanes in _pieces(part.width, stride).items():
            loaded = part.load(part.at(base, plus(v.code, start, begin), kind), kind)
            if found is None:
                order = [lanes.get(n, 0) for n in range(part.width)]
                found = part.shuffle(loaded, loaded, order)
            else:
                order = [part.width + lanes[n] if n in lanes else n for n in range(part.width)]
                found = part.shuffle(found, loaded, order)
        assert found is not None, "lanes"
        parts.append(found)
    while len(parts) > 1:
        pairs = zip(parts[::2], parts[1::2], strict=True)
        parts = [v.shuffle(a, b, range(2 * a.width)) for a, b in pairs]
    return (parts[0],)


def store_apart(v: Vectors, value: Held, base: str, first: str, stride: int, dtype: DType) -> None:
    """Store the lanes to `first`, `first + stride`, ..., and nothing between them."""
    kind = storage.memory_kind(dtype)
    part = Vectors(v.code, _REGISTER // BITS[kind])
    for chunk in range(0, v.width, part.width):
        start = plus(v.code, first, chunk * stride)
        for begin, lanes in _pieces(part.width, stride).items():
            sources = {place: n for n, place in lanes.items()}
            order = [chunk + sources.get(place, 0) for place in range(part.width)]
            listed = ", ".join(f"i1 {str(n in sources).lower()}" for n in range(part.width))
            part.store_masked(
                v.shuffle(value[0], value[0], order),
                part.at(base, plus(v.code, start, begin), kind),
                Vector(f"<{listed}>", "i1", part.width),
            )


def _pieces(width: int, stride: int) -> dict[int, dict[int, int]]:
    """Vectors that cover the lanes: from their first element, the place of each lane in them."""
    last = (width - 1) * stride + 1 - width  # ends with the last lane: no access behind it
    begins = [min(begin, last) for begin in range(0, last + width, width)]
    pieces: dict[int, dict[int, int]] = {begin: {} for begin in begins}
    for lane in range(width):
        begin = next(b for b in begins if b <= lane * stride < b + width)
        pieces[begin][lane] = lane * stride - begin
    return pieces
