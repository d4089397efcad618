"""Calls with padded arguments: the program that they run, and the cuts of its results."""

from __future__ import annotations

import sys
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from weft.capture.torch.sizes.extents import Extents, SymbolSizes, size_of, varies
from weft.capture.torch.sizes.instance import ValueExtents
from weft.records import dataclass


@dataclass(frozen=True, slots=True)
class SizedProgram:
    """A program at the sizes of a bucket, whose last arguments are the sizes of a call."""

    imported: Any  # weft.capture.torch.graph.Imported
    tree: Any  # of the results
    symbols: tuple[str, ...]
    bucket: SymbolSizes
    results: tuple[ValueExtents, ...]
    outputs: tuple[int | None, ...]  # for each leaf, the number of its result
    numbers: Mapping[int, Extents]  # leaves that are functions of the sizes

    def cuts(self, sizes: SymbolSizes) -> ResultCuts:
        """The cuts of the results of calls with these sizes."""
        tensors: list[tuple[int, TensorCut]] = []
        for n, place in enumerate(self.outputs):
            if place is not None and any(map(varies, self.results[place])):
                tensors.append((n, self._cut(self.results[place], sizes)))
        numbers = [(n, size_of(extents, sizes)) for n, extents in self.numbers.items()]
        return ResultCuts(tuple(tensors), tuple(numbers))

    def _cut(self, dims: ValueExtents, sizes: SymbolSizes) -> TensorCut:
        parts = [extent for dim in dims for extent in dim]
        narrows = [(n, part.at(sizes)) for n, part in enumerate(parts) if part.symbol is not None]
        is_plain = all(len(dim) == 1 for dim in dims)
        return TensorCut(
            None if is_plain else tuple([part.at(self.bucket) for part in parts]),
            tuple(narrows),
            None if is_plain else tuple([size_of(dim, sizes) for dim in dims]),
        )


@dataclass(frozen=True, slots=True)
class TensorCut:
    """The part of a result that was not computed for the padding."""

    apart: tuple[int, ...] | None  # the sizes of merged dims, where there are some
    narrows: tuple[tuple[int, int], ...]  # dims and sizes
    merged: tuple[int, ...] | None

    def __call__(self, tensor: Any) -> Any:
        """The result in memory of its own order, as eager mode's results are."""
        if self.apart is not None:
            tensor = tensor.reshape(self.apart)
        for dim, size in self.narrows:
            tensor = tensor.narrow(dim, 0, size)
        return (tensor if self.merged is None else tensor.reshape(self.merged)).contiguous()


@dataclass(frozen=True, slots=True)
class ResultCuts:
    """The cuts of a program's results for some sizes: the leaves that are cut, and numbers."""

    tensors: tuple[tuple[int, TensorCut], ...]
    numbers: tuple[tuple[int, int], ...]

    def __call__(self, results: Any) -> Any:
        """The results of a call, without what was computed for the padding."""
        if results.__class__ in (list, tuple) and not any(map(_is_tree, results)):
            return results.__class__(self._cut([*results]))
        if not _is_tree(results):
            return self._cut([results])[0]
        from torch.utils._pytree import tree_flatten, tree_unflatten

        leaves, tree = tree_flatten(results)
        return tree_unflatten(self._cut(leaves), tree)

    def _cut(self, leaves: list[Any]) -> list[Any]:
        for n, cut in self.tensors:
            leaves[n] = cut(leaves[n])
        for n, number in self.numbers:
            leaves[n] = number
        return leaves


def _is_tree(value: Any) -> bool:
    """Whether a value may have leaves; a plain tensor or number is one itself."""
    return value.__class__ not in (int, bool, float, str) and not isinstance(
        value, sys.modules["torch"].Tensor
    )


@dataclass(frozen=True, slots=True)
class SizedCall:
    """A call of a sized program: padded arguments, and the sizes that they had."""

    program: SizedProgram
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    values: tuple[Any, ...]  # the sizes as tensors
    cut: ResultCuts
    # The cheap key of the padded arguments, and the tensors of module and arguments.
    seen: Hashable
    tensors: Sequence[Any]
