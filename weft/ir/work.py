"""Work: an op's arithmetic and memory traffic as counts; the cost model turns it into seconds."""

from __future__ import annotations

from weft.ir.types import TensorType, Type
from weft.records import dataclass


@dataclass(frozen=True, slots=True)
class Work:
    """Counts of arithmetic, of transcendental calls, of bytes touched and of bytes sent."""

    flops: int = 0
    transcendentals: int = 0
    bytes: int = 0
    sent: int = 0  # bytes that leave this device

    def __add__(self, other: Work) -> Work:
        return Work(
            self.flops + other.flops,
            self.transcendentals + other.transcendentals,
            self.bytes + other.bytes,
            self.sent + other.sent,
        )

    def times(self, count: int) -> Work:
        """The same work, `count` times over."""
        return Work(
            self.flops * count, self.transcendentals * count, self.bytes * count, self.sent * count
        )


def moved(*types: Type) -> int:
    """The bytes of these tensors, each touched once."""
    return sum(t.nbytes for t in types if isinstance(t, TensorType))


def elements(type: Type) -> int:
    """The number of elements of a tensor."""
    return type.size if isinstance(type, TensorType) else 0
