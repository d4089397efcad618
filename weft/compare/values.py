"""Comparison of sharded with unsharded: every value of a local program against one device."""

from __future__ import annotations

import functools
import hashlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from weft.array.stacked import Stacked, assemble, dims_along, one_for_all, split
from weft.compare.differences import Difference, cancellation_bound, difference
from weft.compare.stored import keep_arrays, stored_arrays
from weft.evaluate import evaluate
from weft.ir.location import UNKNOWN
from weft.ir.module import Module, Node, Value
from weft.ir.types import Array, TensorType
from weft.ir.write import value_names
from weft.mesh import Mesh
from weft.ops.combiners import COMBINERS
from weft.partition import partition
from weft.partition.piece import Piece, sharding_of
from weft.pipeline import local_program
from weft.run import LocalProgram


class _Found(Exception):
    """Carries the first difference out of a run."""

    def __init__(self, difference: Difference) -> None:
        self.difference = difference


def compare_every_op(
    sharded: Module, arrays: Sequence[Array], cache: Path | None = None
) -> Difference | int:
    """The first value that differs from the single-device run, or the number compared.

    Reference values are stored in the folder `cache`, if given, for later runs.
    """
    places: dict[Value, list[Piece]] = {}
    local = partition(sharded, places=places)
    expected = _reference(sharded, arrays, places, cache)
    watcher = _Watcher(sharded, local, places, expected)
    program = watcher.program = local_program(local, fold=False)
    try:
        program.checked(*stacks_of(program, arrays), watch=watcher.see)
    except _Found as found:
        return found.difference
    return watcher.compared


def stacks_of(program: LocalProgram, arrays: Sequence[Array]) -> list[Stacked | None]:
    """The arguments of a local program, split over its devices; None for tokens."""
    remaining = iter(arrays)
    stacks: list[Stacked | None] = []
    for type, sharding in zip(program.arg_types, program.shardings, strict=True):
        if not isinstance(type, TensorType):
            stacks.append(None)
        elif sharding is None:
            stacks.append(one_for_all(next(remaining), program.sub_axes))
        else:
            stacks.append(split(next(remaining), sharding, program.mesh, program.sub_axes))
    return stacks


def _paid(stack: Stacked, piece: Piece, mesh: Mesh) -> Stacked:
    """A partial sum, reduced over its devices."""
    if piece.partial is None:
        return stack
    data = stack.data
    combine = COMBINERS[piece.partial.combine].reference
    for dim in dims_along(piece.partial.axes, mesh, stack.sub_axes):
        # A contraction whose all_reduce follows may be computed with it: it is replicated already.
        if data.shape[dim] > 1:
            data = functools.reduce(combine, np.split(data, data.shape[dim], dim))
    return Stacked(data, stack.sub_axes)


Expected = dict[Value, list[Array]]  # the values of a node, once for each execution


def _reference(
    module: Module, arrays: Sequence[Array], places: dict[Value, list[Piece]], cache: Path | None
) -> Expected:
    numbers = {v: n for n, v in enumerate(places) if v.node is not None}
    file = None if cache is None else cache / f"{_key(module, arrays)}.npz"
    stored = stored_arrays(file)
    if stored is not None:
        return _read(stored, numbers)
    expected: Expected = defaultdict(list)

    def see(node: Node, results: tuple[Array, ...]) -> None:
        for value, result in zip(node.results, results, strict=True):
            if value in numbers:
                expected[value].append(np.asarray(result))

    evaluate(module, *arrays, watch=see)
    if file is not None:
        named = {
            f"{numbers[v]}_{n}": a for v, times in expected.items() for n, a in enumerate(times)
        }
        keep_arrays(file, named)
    return expected


def _read(stored: Mapping[str, Array], numbers: dict[Value, int]) -> Expected:
    values = {n: v for v, n in numbers.items()}
    found: Expected = defaultdict(list)
    for name in sorted(stored, key=lambda f: [*map(int, f.split("_"))]):
        found[values[int(name.partition("_")[0])]].append(stored[name])
    return found


def _key(module: Module, arrays: Sequence[Array]) -> str:
    made = hashlib.sha256(module.text().encode())
    for array in arrays:
        made.update(np.ascontiguousarray(array).tobytes())
    return made.hexdigest()[:24]


class _Watcher:
    """Compares local values with their global counterparts as they are computed."""

    def __init__(
        self, sharded: Module, local: Module, places: dict[Value, list[Piece]], expected: Expected
    ) -> None:
        self.local = local
        self.expected = expected
        self.stands: dict[Value, list[tuple[Value, Piece]]] = defaultdict(list)
        for value, placed in places.items():
            for one in placed if value.node is not None else ():
                self.stands[one.value].append((value, one))
        self.names = {
            v: name for f in sharded.functions.values() for v, name in value_names(f).items()
        }
        self.seen: dict[Value, int] = defaultdict(int)
        self.compared = 0
        # values that rounding dominates, and those derived from them
        self.noise: set[Value] = set()
        self.program: LocalProgram | None = None

    def see(self, node: Node, results: Sequence[Stacked]) -> None:
        """Compare the results of a local node."""
        for local, stack in zip(node.results, results, strict=True):
            for value, placed in self.stands.get(local, ()):
                if isinstance(value.type, TensorType):
                    self.compare(value, placed, stack)

    def scale(self, value: Value) -> float:
        """The magnitude of operands that may cancel, which bounds the rounding error."""
        operands = value.node.operands if value.node else ()
        return cancellation_bound([times[-1] for v in operands if (times := self.expected.get(v))])

    def compare(self, value: Value, piece: Piece, stack: Stacked) -> None:
        times = self.expected.get(value, [])
        # A value inside of a loop is computed several times: the executions are compared in order.
        turn = self.seen[value]
        self.seen[value] += 1
        if turn >= len(times):
            return
        assert self.program is not None and isinstance(value.type, TensorType)
        mesh = self.program.mesh
        whole = assemble(
            _paid(stack, piece, mesh), value.type.sizes, sharding_of(piece.split, "mesh"), mesh
        )
        loc = value.node.loc if value.node else UNKNOWN
        result = difference(self.names.get(value, "a value"), whole, times[turn], loc)
        self.compared += 1
        if result.is_close:
            # In an earlier iteration it may have been noise.
            self.noise.discard(value)
            return
        scaled = difference(result.name, whole, times[turn], loc, self.scale(value))
        operands = value.node.operands if value.node else ()
        if not scaled.is_close and self.noise.isdisjoint(operands):
            raise _Found(result)
        self.noise.add(value)
