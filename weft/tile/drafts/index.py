"""Indices as affine expressions of a kernel's factors, and their reshaping."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

from weft.records import dataclass

# An offset, and the nonzero coefficients of factors, in the order of factor numbers.
Expr: TypeAlias = tuple[int, tuple[tuple[int, int], ...]]
At: TypeAlias = tuple[Expr, ...]  # one for each dim of a stack
Bound: TypeAlias = tuple[Expr, int, int]  # low <= expression < high
Size: TypeAlias = Callable[[int], int]  # size of a factor

ZERO: Expr = (0, ())


@dataclass(frozen=True, slots=True)
class Split:
    """A request to split a factor, with the size of its minor part."""

    factor: int
    inner: int


def factor(number: int) -> Expr:
    """The index along one factor."""
    return (0, ((number, 1),))


def plus(one: Expr, other: Expr) -> Expr:
    """The sum of two expressions."""
    if not other[1]:
        return (one[0] + other[0], one[1])
    if not one[1]:
        return (one[0] + other[0], other[1])
    terms = dict(one[1])
    for number, coefficient in other[1]:
        terms[number] = terms.get(number, 0) + coefficient
    return (one[0] + other[0], tuple(sorted((n, c) for n, c in terms.items() if c)))


def times(expr: Expr, by: int, add: int = 0) -> Expr:
    """An expression times a number, plus another one."""
    if by == 0:
        return (add, ())
    if by == 1:
        return (expr[0] + add, expr[1])
    return (expr[0] * by + add, tuple([(n, c * by) for n, c in expr[1]]))


def limits(expr: Expr, size: Size) -> tuple[int, int]:
    """The least and the greatest value."""
    low = high = expr[0]
    for number, coefficient in expr[1]:
        reach = coefficient * (size(number) - 1)
        if reach < 0:
            low += reach
        else:
            high += reach
    return low, high


def always(bound: Bound, size: Size) -> bool:
    """Whether a bound holds at every point."""
    low, high = limits(bound[0], size)
    return bound[1] <= low and high < bound[2]


def factors_of(at: Sequence[Expr]) -> set[int]:
    """The factors that any of these depends on."""
    return {number for expr in at for number, _ in expr[1]}


def linear(at: Sequence[Expr], shape: Sequence[int]) -> Expr:
    """The row-major index."""
    offset, stride = 0, 1
    terms: dict[int, int] = {}
    for expr, size in zip(reversed(at), reversed(shape), strict=True):
        offset += expr[0] * stride
        for number, coefficient in expr[1]:
            terms[number] = terms.get(number, 0) + coefficient * stride
        stride *= size
    return (offset, tuple(sorted([(n, c) for n, c in terms.items() if c])))


def taken_apart(place: Expr, shape: Sequence[int], size: Size) -> At | Split | None:
    """The indices along each dim of a shape, from a row-major index.

    A factor that crosses dims must be split; None if no split helps.
    """
    exprs: list[Expr] = []
    rest = place
    for dim, length in reversed([*enumerate(shape)]):
        if dim == 0:
            part, rest = rest, ZERO
        else:
            # Terms that are multiples of the length carry to the next dim; the rest must stay
            # inside of this one.
            inner = tuple([(n, c) for n, c in rest[1] if c % length])
            outer = tuple([(n, c // length) for n, c in rest[1] if c % length == 0])
            carry, offset = divmod(rest[0], length)
            part, rest = (offset, inner), (carry, outer)
        low, high = limits(part, size)
        if low < 0 or high >= length:
            return _helpful_split(part, length, size)
        exprs.append(part)
    return tuple(reversed(exprs)) if rest == ZERO else None


def _helpful_split(part: Expr, length: int, size: Size) -> Split | None:
    for number, coefficient in part[1]:
        if coefficient <= 0 or length % coefficient:
            continue
        # Its minor part stays inside of the dim, and its major part is a multiple of the length.
        inner = length // coefficient
        if 1 < inner < size(number) and size(number) % inner == 0:
            return Split(number, inner)
    return None


def reshaped(
    at: Sequence[Expr], shape: Sequence[int], to: Sequence[int], size: Size
) -> At | Split | None:
    """Indices of one shape as those of another with as many elements."""
    exprs: list[Expr] = []
    for mine, theirs in blocks(shape, to):
        sizes = [to[d] for d in theirs]
        # A dim that the reshape leaves alone keeps its index, and needs no split.
        if len(mine) == 1 and len(theirs) == 1:
            exprs.append(at[mine[0]])
            continue
        place = linear([at[d] for d in mine], [shape[d] for d in mine])
        part = taken_apart(place, sizes, size) if sizes else ()
        if not isinstance(part, tuple):
            return part
        exprs += part
    return tuple(exprs)


def blocks(shape: Sequence[int], to: Sequence[int]) -> list[tuple[list[int], list[int]]]:
    """The shortest runs of dims of two shapes that hold the same elements."""
    pairs: list[tuple[list[int], list[int]]] = []
    i = j = 0
    while i < len(shape) or j < len(to):
        mine, theirs = [], []
        if i < len(shape):
            mine.append(i)
        if j < len(to):
            theirs.append(j)
        left = math.prod(shape[d] for d in mine)
        right = math.prod(to[d] for d in theirs)
        i, j = i + len(mine), j + len(theirs)
        while left != right:
            if (left < right and i < len(shape)) or j == len(to):
                mine.append(i)
                left *= shape[i]
                i += 1
            else:
                theirs.append(j)
                right *= to[j]
                j += 1
        pairs.append((mine, theirs))
    return pairs


def covers(at: Sequence[Expr], shape: Sequence[int], size: Size) -> bool:
    """Whether the factors meet every element of a shape exactly once."""
    place = linear(at, shape)
    expected = 1
    # By stride: each factor begins where the one before it ends, without a gap or an overlap.
    for number, coefficient in sorted(place[1], key=lambda term: term[1]):
        if coefficient != expected:
            return False
        expected *= size(number)
    return place[0] == 0 and expected == math.prod(shape)
