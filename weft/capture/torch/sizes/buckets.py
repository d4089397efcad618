"""Calls whose sizes vary: arguments padded to the sizes of a few programs."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import lru_cache
from typing import Any

from weft.cache.recent import RecentlyUsed
from weft.capture.torch.graph import GraphConstant, Imported
from weft.capture.torch.sizes.call import SizedCall, SizedProgram
from weft.capture.torch.sizes.extents import Extents, SizesDepend, SymbolSizes, depends, fit
from weft.capture.torch.sizes.instance import Capture, Instantiation
from weft.capture.torch.sizes.probes import probes_of
from weft.capture.torch.sizes.shapes import NUMBER, CallShapes, batch_shapes, named_shapes
from weft.capture.torch.sizes.special import SPECIAL
from weft.capture.torch.source import TorchProgram, holds_tensors
from weft.errors import WeftError, warn
from weft.records import dataclass

_KEYS = 256  # cheap keys that are remembered
_CAPTURES = 24  # that are kept: buckets share some
# Errors of a user's program that cannot be traced for other sizes than the call's.
_FAILURES = (WeftError, RuntimeError, ValueError, IndexError, TypeError, AssertionError)


@dataclass(frozen=True, slots=True)
class _Traced:
    """A capture with the tree of its results."""

    imported: Imported
    tree: Any


class SizeBuckets:
    """The padded calls of a program, by `dynamic_shapes`, or with a batch that varies.

    A program is built for each bucket of sizes, of captures for other sizes. Where an op cannot
    ignore padding, every size has a program of its own, which a warning says.
    """

    def __init__(self, name: str, shapes: Any, most: int) -> None:
        self.name, self.shapes = name, shapes
        self._known: RecentlyUsed[Hashable, SizedProgram | SizesDepend] = RecentlyUsed(most)
        self._captures: RecentlyUsed[Hashable, _Traced] = RecentlyUsed(_CAPTURES)
        self._warned: set[str] = set()
        # By cheap keys: the shapes of a call's sizes, and the programs of its bucket.
        self._parsed: RecentlyUsed[Hashable, CallShapes | None] = RecentlyUsed(_KEYS)
        self._seen: RecentlyUsed[Hashable, SizedProgram | SizesDepend] = RecentlyUsed(_KEYS)

    def call(self, source: Any, args: Any, kwargs: Any) -> SizedCall | None:
        """The padded call of a program; None if it is compiled for the call's own sizes."""
        from torch.utils._pytree import tree_flatten, tree_unflatten

        if not isinstance(source, TorchProgram) or not holds_tensors(args, kwargs):
            raise WeftError(
                "dynamic and dynamic_shapes are options of PyTorch programs, and no argument is a "
                "tensor of its",
                help="leave them out: a program is compiled for each size",
            )
        leaves, tree = tree_flatten((args, kwargs))
        key = (tree, tuple([getattr(leaf, "shape", None) for leaf in leaves]))
        shapes = self._parsed.used(key)
        if shapes is None:
            shapes = self._shapes(source, leaves, args, kwargs)
            self._parsed.put(key, shapes)
        if shapes is None or not shapes.symbols:
            return None
        sizes = shapes.sizes(leaves)
        shapes = shapes.varying(sizes)
        if 0 in sizes or not shapes.symbols:  # nothing to repeat, or no other size in the bucket
            return None
        sizes = shapes.sizes(leaves)
        pairs = zip(shapes.symbols, sizes, strict=True)
        bucket = tuple([symbol.bucket(size) for symbol, size in pairs])

        def sized(wanted: SymbolSizes) -> Any:
            return tree_unflatten(resized(leaves, shapes, sizes, wanted), tree)

        inner, named = sized(bucket)
        program = self._program(source, inner, named, shapes, bucket, sized)
        if isinstance(program, SizesDepend):
            return None
        return SizedCall(program, inner, named, sizes, (*map(_tensor, sizes),))

    def _shapes(
        self, source: TorchProgram, leaves: Sequence[Any], args: Any, kwargs: Any
    ) -> CallShapes | None:
        found = source.call_shapes(leaves)
        if found is not None:
            return found
        if self.shapes is None:
            return batch_shapes(leaves, [f"tensor {n}" for n in range(len(leaves))])
        return named_shapes(self.shapes, args, kwargs, source.parameter_names(len(args)))

    def _program(
        self,
        source: TorchProgram,
        args: Any,
        kwargs: Any,
        shapes: CallShapes,
        bucket: SymbolSizes,
        sized: Callable[[SymbolSizes], Any],
    ) -> SizedProgram | SizesDepend:
        """The program of a bucket, or why there is none."""
        symbols = tuple([symbol.name for symbol in shapes.symbols])
        places = (symbols, tuple([tuple(extents.items()) for extents in shapes.leaves]))
        cheap = (source.quick_key(args, kwargs)[0], places)
        outcome = self._seen.used(cheap)
        if outcome is None:
            outcome = self._by_types(source, args, kwargs, places, shapes, bucket, sized)
            self._seen.put(cheap, outcome)
        return outcome

    def _by_types(
        self,
        source: TorchProgram,
        args: Any,
        kwargs: Any,
        places: Hashable,
        shapes: CallShapes,
        bucket: SymbolSizes,
        sized: Callable[[SymbolSizes], Any],
    ) -> SizedProgram | SizesDepend:
        """The program of a bucket by the types of all its arguments."""
        held = (source.flatten(args, kwargs)[0], places)
        outcome = self._known.used(held)
        if outcome is None:
            try:
                outcome = self._built(source, shapes, bucket, sized)
            except SizesDepend as error:
                outcome = error
                self._warn(error, shapes)
            self._known.put(held, outcome)
        return outcome

    def _warn(self, error: SizesDepend, shapes: CallShapes) -> None:
        place = f" at {error.loc.describe()}" if error.loc is not None else ""
        names = ", ".join([symbol.name for symbol in shapes.symbols])
        text = (
            f"{self.name} is compiled for each size of {names}, not padded: {error.message}{place}"
        )
        if text not in self._warned:
            self._warned.add(text)
            warn(f"dynamic: {text}")

    def _built(
        self,
        source: TorchProgram,
        shapes: CallShapes,
        bucket: SymbolSizes,
        sized: Callable[[SymbolSizes], Any],
    ) -> SizedProgram:
        """The program of a bucket by captures near and far, or else by captures in the bucket."""
        failure: SizesDepend | None = None
        smallest = tuple([s.smallest(n) for s, n in zip(shapes.symbols, bucket, strict=True)])
        for probes in probes_of(shapes.symbols, bucket, source.fixed_sizes(*sized(bucket))):
            try:
                return self._instance(source, shapes, bucket, smallest, probes, sized)
            except SizesDepend as error:
                failure = failure or error
        raise failure or depends("no two sizes are in its range")

    def _instance(
        self,
        source: TorchProgram,
        shapes: CallShapes,
        bucket: SymbolSizes,
        smallest: SymbolSizes,
        probes: Sequence[SymbolSizes],
        sized: Callable[[SymbolSizes], Any],
    ) -> SizedProgram:
        traced = [self._capture(source, each, sized) for each in probes]
        first = traced[0].imported
        names = tuple([symbol.name for symbol in shapes.symbols])
        numbers = _numbers([each.imported for each in traced], probes)
        pairs = zip(probes, traced, strict=True)
        captures = [Capture(at, each.imported.module) for at, each in pairs]
        walk = Instantiation(captures, names, bucket, smallest, SPECIAL)
        instance = walk.run(first.is_seeded)
        count = len(first.updated)
        if any(len(extents) > 1 or extents[0].symbol is not None
               for dims in instance.results[:count] for extents in dims):  # fmt: skip
            raise depends("a tensor that is updated in place has a size that varies")
        imported = Imported(
            instance.module, first.updated, first.outputs, first.is_seeded, first.draws
        )
        outputs = tuple([each if isinstance(each, int) else None for each in first.outputs])
        return SizedProgram(
            imported, traced[0].tree, names, bucket, instance.results, outputs, numbers
        )

    def _capture(
        self, source: TorchProgram, sizes: SymbolSizes, sized: Callable[[SymbolSizes], Any]
    ) -> _Traced:
        args, kwargs = sized(sizes)
        key, call = source.flatten(args, kwargs)
        trace = self._captures.used(key)
        if trace is None:
            try:
                trace = _Traced(*source.traced(call))
            except _FAILURES as error:
                text = str(error).strip().partition("\n")[0]
                raise depends(f"it cannot be traced for the sizes {sizes}: {text}") from error
            self._captures.put(key, trace)
        return trace


@lru_cache(1024)
def _tensor(size: int) -> Any:
    """A size as a tensor, which programs only read."""
    import torch

    return torch.tensor(size)


def _numbers(programs: Sequence[Imported], probes: Sequence[SymbolSizes]) -> dict[int, Extents]:
    """The leaves of the results that are integers which depend on the sizes."""
    first = programs[0]
    numbers: dict[int, Extents] = {}
    for other in programs[1:]:
        if (other.updated, other.is_seeded) != (first.updated, first.is_seeded):
            raise depends("the program has other results for other sizes")
    for n, leaves in enumerate(zip(*[each.outputs for each in programs], strict=True)):
        if all(leaf == leaves[0] for leaf in leaves):
            continue
        values = [leaf.value if isinstance(leaf, GraphConstant) else None for leaf in leaves]
        integers = [value for value in values if type(value) is int]
        extents = fit(integers, probes) if len(integers) == len(values) else None
        if extents is None:
            raise depends("a result that is no tensor depends on the sizes")
        numbers[n] = extents
    return numbers


def resized(
    leaves: Sequence[Any], shapes: CallShapes, sizes: SymbolSizes, wanted: SymbolSizes
) -> list[Any]:
    """The leaves of a call at other sizes: their first elements, and the last one repeated."""
    new_leaves = []
    for leaf, extents in zip(leaves, shapes.leaves, strict=True):
        for dim, extent in extents.items():
            if dim == NUMBER:
                leaf = extent.at(wanted)
            else:
                leaf = _resized(leaf, dim, extent.at(wanted))
        new_leaves.append(leaf)
    return new_leaves


def _resized(leaf: Any, dim: int, count: int) -> Any:
    import torch

    size = leaf.shape[dim]
    if count <= size:
        return leaf.narrow(dim, 0, count)
    shape = [*leaf.shape]
    shape[dim] = count - size
    # An element of the call's is valid where zeros may not be: as an index, under a logarithm.
    return torch.cat([leaf, leaf.narrow(dim, size - 1, 1).expand(shape)], dim)
