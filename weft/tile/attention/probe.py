"""Probing: row-wise chains of nodes are identified by evaluating them (is it a softmax?).

Every element of such a chain depends on one row of its inputs only. So a few synthetic rows
identify its function, in whatever order and form it is spelled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache

import numpy as np

from weft.ir.module import Value, tensor_of
from weft.ir.rule import Combine
from weft.ir.types import Array
from weft.ops.elementwise.convert import Convert
from weft.ops.reduce import Reduce
from weft.ops.shape import Constant
from weft.tile.attention.reading import Place, Reader
from weft.tile.drafts.index import Expr
from weft.tile.drafts.pulls import fusible_combine

_FOLDS = {"add": np.add, "max": np.maximum, "min": np.minimum, "mul": np.multiply}


class Probe:
    """Evaluates chains on arrays of rows and keys; a part that is constant along one has size 1."""

    def __init__(
        self,
        reader: Reader,
        row: Sequence[Expr],
        arrays: Mapping[Place, Array],
        fixed: Mapping[Value, float | bool] | None = None,
    ) -> None:
        self.reader = reader
        self.row = row  # indices along a row: the reduced ones
        self.known: dict[Place, Array | None] = dict(arrays)
        self.fixed = fixed or {}  # values fixed to one number
        # Places are compared by their indices, which splitting rewrites.
        self.splits = len(reader.draft.parts)

    def __call__(self, place: Place) -> Array | None:
        """The numbers at a place; None if it depends on other inputs."""
        place = self.reader.through(place)
        if len(self.reader.draft.parts) > self.splits:
            return None  # factors were split: known places no longer match
        if place.value in self.fixed:
            return np.array([[self.fixed[place.value]]])
        if place not in self.known:
            self.known[place] = None  # cycle guard
            with np.errstate(all="ignore"):
                self.known[place] = self._evaluate(place)
        return self.known[place]

    def _evaluate(self, place: Place) -> Array | None:
        node = place.node
        if node is not None and isinstance(node.op, Constant):  # independent of the place
            return _wide(node.op.value.elements) if node.op.value.is_splat else None
        if node is None or node not in self.reader.program.placed:
            return None
        if isinstance(node.op, Reduce):
            return self._reduced(place)
        if not node.op.elementwise:
            return None
        args = [self(arg) for arg in self.reader.operands(place)]
        if any(a is None for a in args):
            return None
        if isinstance(node.op, Convert):
            kinds = tensor_of(node.operands[0]).dtype.kind, tensor_of(place.value).dtype.kind
            wanted = kinds in (("float", "float"), ("bool", "float"))
            return np.asarray(args[0], np.float64) if wanted else None
        given = np.broadcast_arrays(*[a for a in args if a is not None])
        return np.asarray(node.op.reference(*given))

    def _reduced(self, place: Place) -> Array | None:
        assert place.node is not None
        how = fusible_combine(place.node) if len(place.node.operands) == 2 else None
        shape = tensor_of(place.node.operands[0]).sizes
        assert isinstance(place.node.op, Reduce)
        lengths = [shape[d] for d in place.node.op.folded if shape[d] > 1]
        expected = [self.reader.draft.points([e]) for e in self.row]
        if how not in _FOLDS or lengths != expected or len(self.row) != len(lengths):
            return None
        first, start = self.reader.reduced(place, self._along(place))
        values, begin = self(first), self(start)
        if values is None or begin is None or values.shape[-1] == 1:
            return None
        return _folded(how, values, begin)

    def _along(self, place: Place) -> list[Expr]:
        """The row's indices, with size-1 dims between them."""
        assert place.node is not None and isinstance(place.node.op, Reduce)
        shape, given = tensor_of(place.node.operands[0]).sizes, iter(self.row)
        return [next(given) if shape[d] > 1 else (0, ()) for d in place.node.op.folded]


def _folded(how: Combine, values: Array, begin: Array) -> Array:
    fold = _FOLDS[how]
    return np.asarray(fold(fold.reduce(values, axis=-1, keepdims=True), begin))


def _wide(elements: Array) -> Array:
    """A constant's element as rows of one key."""
    one = np.asarray(elements).reshape(-1)[:1].reshape(1, 1)
    return one if one.dtype == bool else one.astype(np.float64)


def softmax(scores: Array) -> Array:
    """The softmax of rows."""
    with np.errstate(all="ignore"):
        powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
        return np.asarray(powers / powers.sum(axis=-1, keepdims=True))


@cache
def rows(seed: int) -> Array:
    """Synthetic rows."""
    return np.random.default_rng(seed).standard_normal((3, 5)) * 3.0
