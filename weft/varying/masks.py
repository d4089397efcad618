"""Masks: sets of sub-axes, or of leading dims, as bits of an integer; per element for tuples."""

from __future__ import annotations

from typing import TypeAlias

from weft.ir.types import FutureType, TupleType, Type

Mask: TypeAlias = "int | tuple[Mask, ...]"
Masks: TypeAlias = tuple[Mask, ...]


def bits(mask: int) -> tuple[int, ...]:
    """The members of a mask, in order."""
    return tuple(dim for dim in range(mask.bit_length()) if mask >> dim & 1)


def union(*masks: Mask) -> int:
    """The union of masks, over all elements of tuples."""
    total = 0
    for mask in masks:
        total |= union(*mask) if isinstance(mask, tuple) else mask
    return total


def join(first: Mask, second: Mask) -> Mask:
    """The join of two values' masks, element by element."""
    if isinstance(first, tuple) and isinstance(second, tuple):
        return tuple(join(a, b) for a, b in zip(first, second, strict=True))
    return union(first, second)


def with_bits(mask: Mask, more: int) -> Mask:
    """A mask with more members, in every element."""
    return tuple(with_bits(m, more) for m in mask) if isinstance(mask, tuple) else mask | more


def same_for_elements(type: Type, mask: int) -> Mask:
    """The mask of a value whose elements all vary along the same sub-axes."""
    if isinstance(type, TupleType | FutureType):
        return tuple(same_for_elements(t, mask) for t in type.types)
    return mask
