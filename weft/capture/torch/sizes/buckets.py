"""Calls whose sizes vary: arguments padded to the sizes of a few programs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import lru_cache
from typing import Any

from weft.cache.recent import RecentlyUsed
from weft.capture.torch.graph import GraphConstant, Imported
from weft.capture.torch.sizes.call import ResultCuts, SizedCall, SizedProgram
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
        # By the shapes of tensors and the values of numbers, where all arguments are these.
        self._prepared: RecentlyUsed[Hashable, _PreparedCall] = RecentlyUsed(_KEYS)
        # By cheap keys: the shapes of a call's sizes, and the programs of its bucket.
        self._parsed: RecentlyUsed[Hashable, CallShapes | None] = RecentlyUsed(_KEYS)
        self._seen: RecentlyUsed[Hashable, SizedProgram | SizesDepend] = RecentlyUsed(_KEYS)

    def call(self, source: Any, args: Any, kwargs: Any) -> SizedCall | None:
        """The padded call of a program; None if it is compiled for the call's own sizes."""
        key = _flat_key(args, kwargs)
        prepared = None if key is None else self._prepared.used(key)
        if prepared is None:
            prepared = self._prepare(source, args, kwargs)
            if key is not None:
                self._prepared.put(key, prepared)
        shapes = prepared.shapes
        if shapes is None:
            return None
        if key is None:
            inner, named = self._sized(args, kwargs, prepared, prepared.bucket)
        else:
            inner, named = _padded(prepared.paddings, args, kwargs)
        seen, tensors = source.quick_key(inner, named)
        last = prepared.last
        if last is None or seen != last[0]:

            def sized(wanted: SymbolSizes) -> Any:
                return self._sized(args, kwargs, prepared, wanted)

            program = self._program(source, seen, inner, named, shapes, prepared.bucket, sized)
            if isinstance(program, SizesDepend):
                return None
            last = prepared.last = (seen, program, program.cuts(prepared.sizes))
        return SizedCall(last[1], inner, named, prepared.values, last[2], seen, tensors)

    def _prepare(self, source: Any, args: Any, kwargs: Any) -> _PreparedCall:
        """The sizes of a call, and how its arguments are padded."""
        from torch.utils._pytree import tree_flatten

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
            return _PreparedCall(None)
        sizes = shapes.sizes(leaves)
        shapes = shapes.varying(sizes)
        if 0 in sizes or not shapes.symbols:  # nothing to repeat, or no other size in the bucket
            return _PreparedCall(None)
        sizes = shapes.sizes(leaves)
        pairs = zip(shapes.symbols, sizes, strict=True)
        bucket = tuple([symbol.bucket(size) for symbol, size in pairs])
        paddings = (*_paddings(leaves, shapes, sizes, bucket),)
        return _PreparedCall(shapes, sizes, bucket, (*map(_tensor, sizes),), paddings)

    def _sized(
        self, args: Any, kwargs: Any, prepared: _PreparedCall, wanted: SymbolSizes
    ) -> tuple[Any, Any]:
        """The arguments of a call at other sizes."""
        from torch.utils._pytree import tree_flatten, tree_unflatten

        assert prepared.shapes is not None, "of calls that are padded"
        leaves, tree = tree_flatten((args, kwargs))
        for padding in _paddings(leaves, prepared.shapes, prepared.sizes, wanted):
            leaves[padding.leaf] = padding(leaves[padding.leaf])
        inner, named = tree_unflatten(leaves, tree)
        return inner, named

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
        seen: Hashable,
        args: Any,
        kwargs: Any,
        shapes: CallShapes,
        bucket: SymbolSizes,
        sized: Callable[[SymbolSizes], Any],
    ) -> SizedProgram | SizesDepend:
        """The program of a bucket, or why there is none."""
        symbols = tuple([symbol.name for symbol in shapes.symbols])
        places = (symbols, tuple([tuple(extents.items()) for extents in shapes.leaves]))
        outcome = self._seen.used((seen, places))
        if outcome is None:
            outcome = self._by_types(source, args, kwargs, places, shapes, bucket, sized)
            self._seen.put((seen, places), outcome)
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
        place = f" at {error.loc.describe()}" if error.loc and error.loc.known else ""
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


def _paddings(
    leaves: Sequence[Any], shapes: CallShapes, sizes: SymbolSizes, wanted: SymbolSizes
) -> Iterator[_Padding]:
    """The changes of a call's leaves for other sizes."""
    for n, (leaf, extents) in enumerate(zip(leaves, shapes.leaves, strict=True)):
        for dim, extent in extents.items():
            count = extent.at(wanted)
            if dim == NUMBER:
                yield _Padding(n, dim, 0, count)
            elif count != leaf.shape[dim]:
                yield _Padding(n, dim, leaf.shape[dim], count)


@dataclass(frozen=True, slots=True)
class _Padding:
    """A change of one leaf's size along a dim: its first elements, or the last one repeated."""

    leaf: int
    dim: int
    size: int
    count: int

    def __call__(self, value: Any) -> Any:
        if self.dim == NUMBER:
            return self.count
        if self.count <= self.size:
            return value.narrow(self.dim, 0, self.count)
        shape = [*value.shape]
        shape[self.dim] = self.count - self.size
        # An element of the call's is valid where zeros may not be: as an index, under a logarithm.
        last = value.narrow(self.dim, self.size - 1, 1).expand(shape)
        return sys.modules["torch"].cat([value, last], self.dim)


def _flat_key(args: Any, kwargs: Any) -> Hashable | None:
    """The shapes of tensors and the values of numbers; None if there are other arguments."""
    torch = sys.modules["torch"]
    plain = (torch.Tensor, torch.nn.Parameter)
    marks: list[Hashable] = [*kwargs]
    for value in (*args, *kwargs.values()) if kwargs else args:
        if value.__class__ in plain:
            marks.append(value.shape)
        elif value.__class__ is int:
            marks.append(value)
        else:
            return None
    return len(args), *marks


def _padded(paddings: Sequence[_Padding], args: Any, kwargs: Any) -> tuple[Any, Any]:
    """Arguments that are leaves themselves, padded."""
    leaves = [*args, *kwargs.values()]
    for padding in paddings:
        leaves[padding.leaf] = padding(leaves[padding.leaf])
    if not kwargs:
        return tuple(leaves), kwargs
    return tuple(leaves[: len(args)]), dict(zip(kwargs, leaves[len(args) :], strict=True))


@dataclass(slots=True)
class _PreparedCall:
    """The sizes, paddings and program that calls with arguments of some shapes share."""

    shapes: CallShapes | None  # None if they are compiled for their own sizes
    sizes: SymbolSizes = ()
    bucket: SymbolSizes = ()
    values: tuple[Any, ...] = ()  # the sizes as tensors
    paddings: tuple[_Padding, ...] = ()
    # Of the last call: the cheap key of its arguments, its program and the cuts of its results.
    last: tuple[Hashable, SizedProgram, ResultCuts] | None = None
