"""Calls with padded arguments: the program that they run, and the cuts of its results."""

from __future__ import annotations

from collections.abc import Mapping
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

    def cut(self, results: Any, sizes: SymbolSizes) -> Any:
        """The results of a call, without what was computed for the padding."""
        from torch.utils._pytree import tree_flatten, tree_unflatten

        leaves, tree = tree_flatten(results)
        for n, place in enumerate(self.outputs):
            if place is not None:
                leaves[n] = self._cut(leaves[n], self.results[place], sizes)
            elif n in self.numbers:
                leaves[n] = size_of(self.numbers[n], sizes)
        return tree_unflatten(leaves, tree)

    def _cut(self, tensor: Any, dims: ValueExtents, sizes: SymbolSizes) -> Any:
        if not any(map(varies, dims)):
            return tensor
        parts = [extent for dim in dims for extent in dim]
        apart = tensor.reshape([part.at(self.bucket) for part in parts])
        for n, part in enumerate(parts):
            if part.symbol is not None:
                apart = apart.narrow(n, 0, part.at(sizes))
        # In memory of its own order, as eager mode's results are.
        return apart.reshape([size_of(dim, sizes) for dim in dims]).contiguous()


@dataclass(frozen=True, slots=True)
class SizedCall:
    """A call of a sized program: padded arguments, and the sizes that they had."""

    program: SizedProgram
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    sizes: SymbolSizes
    values: tuple[Any, ...]  # the sizes as tensors

    def cut(self, made: Any) -> Any:
        """The results for the sizes of this call."""
        return self.program.cut(made, self.sizes)
