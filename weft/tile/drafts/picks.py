"""Argmax and argmin reductions, recognized by evaluating their regions."""

from __future__ import annotations

import itertools
from typing import Literal

import numpy as np

from weft.ir.module import Node, Region, Value, is_elementwise
from weft.ir.types import Array, DType, TensorType
from weft.ops.shape import Constant, Iota, iota

Extreme = Literal["max", "min"]


def pick_of(node: Node) -> Extreme | None:
    """The kind of pick of a reduction of values and indices: NaN first, then the first extremum.

    The region is evaluated on all pairs of distinguishing values.
    """
    if len(node.operands) != 4 or not is_elementwise(node.regions[0]):
        return None
    value, index = (v.type for v in node.operands[:2])
    assert isinstance(value, TensorType) and isinstance(index, TensorType)
    if value.dtype.kind not in ("int", "uint", "float") or not index.dtype.is_integer:
        return None
    a, i, b, j = _trials(value.dtype, index.dtype)
    with np.errstate(all="ignore"):  # comparisons of narrow floats warn of NaN
        outputs = _run(node.regions[0], (a, i, b, j))
        for how in ("max", "min"):
            first = _comes_first(how, a, i, b, j)
            wanted = np.where(first, a, b), np.where(first, i, j)
            if all(map(_same, outputs, wanted)):
                return how
    return None


def counts(node: Node, dim: int) -> bool:
    """Whether a node is an iota along a dim."""
    match node.op:
        case Iota(iota_dimension=along):
            return along == dim
        case Constant(value=value) if not value.is_splat:
            return bool(np.array_equal(value.array, iota(value.type, dim)))
    return False


def _same(one: Array, other: Array) -> bool:
    return bool(((one == other) | ((one != one) & (other != other))).all())


def _trials(value: DType, index: DType) -> tuple[Array, ...]:
    """All pairs of a few values, the first at the lower one of two indices."""
    numbers = [0, 1, 5]
    if value.kind != "uint":
        numbers.append(-3)
    extremes = [-np.inf, np.inf, np.nan] if value.is_float else []
    pairs = itertools.product([*numbers, *extremes], (0, 1, 7), repeat=2)
    rows = [row for row in pairs if row[1] < row[3]]  # a fold sees indices in order
    a, i, b, j = zip(*rows, strict=True)
    kinds = (value, index, value, index)
    return tuple(
        np.asarray(c, np.float64).astype(k.numpy) for c, k in zip((a, i, b, j), kinds, strict=True)
    )


def _run(region: Region, arrays: tuple[Array, ...]) -> tuple[Array, ...]:
    """Evaluate a region of elementwise nodes."""
    held: dict[Value, Array] = dict(zip(region.args, arrays, strict=True))
    for node in region.nodes:
        held[node.results[0]] = node.op.reference(*[held[v] for v in node.operands])
    return tuple([np.broadcast_to(held[v], arrays[0].shape) for v in region.results])


def _comes_first(how: Extreme, a: Array, i: Array, b: Array, j: Array) -> Array:
    """Whether the first of two candidates wins."""
    ahead = a > b if how == "max" else a < b
    same = (a == b) | ((a != a) & (b != b))
    nan_first = (a != a) & (b == b)
    behind = (b != b) & (a == a)
    return np.asarray(((ahead | nan_first) & ~behind) | (same & (i < j)))
