"""Sharded beside unsharded: every value of a local program against the same value on one device."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from weft.array.stacked import Stacked, assemble, dims_along, one_for_all, split
from weft.errors import warn
from weft.evaluate import evaluate
from weft.ir.location import UNKNOWN, Location
from weft.ir.module import Module, Node, Value
from weft.ir.types import Array, TensorType, type_of
from weft.ir.write import value_names
from weft.mesh import Mesh
from weft.ops.local import COMBINERS
from weft.partition import partition
from weft.partition.placed import Placed, sharding_of
from weft.run import LocalProgram

_CANCELLED = 1e-2  # of operands' size: a sum that much smaller is mostly rounding
# How far a value may be off, relative to its largest element, by the bits of its (real) numbers.
_TOLERANCE = {64: 1e-9, 32: 1e-3, 16: 5e-2, 8: 0.25, 6: 0.25, 4: 0.5}


@dataclass(frozen=True, slots=True)
class Difference:
    """How far a value is from what it should be."""

    name: str
    what: str  # its type
    relative: float  # the largest difference over the largest element
    correlation: float  # NaN where one of the two does not vary, so that there is none
    tolerance: float
    loc: Location = UNKNOWN

    @property
    def is_close(self) -> bool:
        """Whether rounding alone explains it."""
        return self.relative <= self.tolerance

    def __str__(self) -> str:
        told = f"{self.name}  {self.what}  relative error {self.relative:.2g}"
        if np.isnan(self.correlation):
            return told
        return f"{told}, correlation {self.correlation:.6f}"

    def told(self) -> str:
        """With the line that it comes from."""
        return f"{self}\n  --> {self.loc.describe()}"


def difference(
    name: str, given: Array, expected: Array, loc: Location = UNKNOWN, scale: float = 0.0
) -> Difference:
    """Compare a value with what it should be; NaN equals NaN, infinities their like.

    The error is relative to the largest element, or to `scale` if that is larger.
    """
    type = type_of(np.asarray(expected))
    exact = type.dtype.kind in ("bool", "int", "uint")
    tolerance = 0.0 if exact else _TOLERANCE[type.dtype.real.bits]
    wide = np.complex128 if type.dtype.kind == "complex" else np.float64
    a, b = (np.asarray(x).astype(wide).reshape(-1) for x in (given, expected))
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    if same.all():
        return Difference(name, str(type), 0.0, 1.0, tolerance, loc)
    with np.errstate(all="ignore"):
        off = np.where(same, 0.0, np.abs(a - b))
        largest = max(np.abs(b[np.isfinite(b)]).max(initial=0.0), scale) or 1.0
        relative = float(np.where(np.isnan(off), np.inf, off).max() / largest)
        both = np.isfinite(a) & np.isfinite(b)
        correlation = _correlation(a[both], b[both])
    return Difference(name, str(type), relative, correlation, tolerance, loc)


def _correlation(a: Array, b: Array) -> float:
    if a.size < 2 or not np.ptp(np.abs(a)) or not np.ptp(np.abs(b)):
        return 1.0 if np.array_equal(a, b) else np.nan
    return float(np.abs(np.corrcoef(a, b)[0, 1]))


def errors(given: Sequence[Array | None], expected: Sequence[Array]) -> list[Difference]:
    """Each result against what it should be."""
    return [
        difference(f"result {n}", a, b)
        for n, (a, b) in enumerate(zip(given, expected, strict=True))
        if a is not None
    ]


class _Found(Exception):
    """The first value that differs."""

    def __init__(self, difference: Difference) -> None:
        self.difference = difference


def compare_every_op(
    sharded: Module, arrays: Sequence[Array], cache: Path | None = None
) -> Difference | int:
    """The first value that differs from the one on one device, or how many were compared.

    What the reference gives is kept in the folder `cache`, if there is one, for the next time.
    """
    places: dict[Value, list[Placed]] = {}
    local = partition(sharded, places=places)
    expected = _reference(sharded, arrays, places, cache)
    watcher = _Watcher(sharded, local, places, expected)
    program = watcher.program = LocalProgram(local, fold=False)
    try:
        program.checked(*_stacks(program, arrays), watch=watcher.see)
    except _Found as found:
        return found.difference
    return watcher.compared


def _stacks(program: LocalProgram, arrays: Sequence[Array]) -> list[Stacked | None]:
    given = iter(arrays)
    made: list[Stacked | None] = []
    for type, sharding in zip(program.arg_types, program.shardings, strict=True):
        if not isinstance(type, TensorType):
            made.append(None)
        elif sharding is None:
            made.append(one_for_all(next(given), program.atoms))
        else:
            made.append(split(next(given), sharding, program.mesh, program.atoms))
    return made


def _paid(stack: Stacked, placed: Placed, mesh: Mesh) -> Stacked:
    """What a value that is still owed would be."""
    if placed.owing is None:
        return stack
    data = stack.data
    combine = COMBINERS[placed.owing.reduction].reference
    for dim in dims_along(placed.owing.axes, mesh, stack.atoms):
        # A product that is summed over the devices right after may be computed as one: then it
        # is equal on all of them already.
        if data.shape[dim] > 1:
            data = functools.reduce(combine, np.split(data, data.shape[dim], dim))
    return Stacked(data, stack.atoms)


Expected = dict[Value, list[Array]]  # what a value is, each time it is computed


def _reference(
    module: Module, arrays: Sequence[Array], places: dict[Value, list[Placed]], cache: Path | None
) -> Expected:
    numbers = {v: n for n, v in enumerate(places) if v.node is not None}
    file = None if cache is None else cache / f"{_key(module, arrays)}.npz"
    if file is not None and os.path.isfile(file):
        return _read(file, numbers)
    found: Expected = defaultdict(list)

    def see(node: Node, results: tuple[Array, ...]) -> None:
        for value, result in zip(node.results, results, strict=True):
            if value in numbers:
                found[value].append(np.asarray(result))

    evaluate(module, *arrays, watch=see)
    if file is not None:
        named = {f"{numbers[v]}_{n}": a for v, times in found.items() for n, a in enumerate(times)}
        _keep(file, named)
    return found


def _keep(file: Path, named: dict[str, Array]) -> None:
    """Write arrays whole or, where the folder cannot be used, not at all, with a warning."""
    unfinished = file.with_suffix(f".{os.getpid()}.tmp")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with unfinished.open("wb") as stream:
            np.savez(stream, **named)  # type: ignore[arg-type]  # its stub takes them for flags
        unfinished.replace(file)
    except OSError as error:
        with contextlib.suppress(OSError):
            unfinished.unlink()
        reason = error.strerror or error
        warn(f"weft does not keep the reference values in {file.parent}: {reason}")


def _read(file: Path, numbers: dict[Value, int]) -> Expected:
    values = {n: v for v, n in numbers.items()}
    found: Expected = defaultdict(list)
    with np.load(file) as stored:
        for name in sorted(stored.files, key=lambda f: [*map(int, f.split("_"))]):
            value = values[int(name.partition("_")[0])]
            array = stored[name]
            if array.dtype.kind == "V" and isinstance(value.type, TensorType):
                array = array.view(value.type.dtype.numpy)
            found[value].append(array)
    return found


def _key(module: Module, arrays: Sequence[Array]) -> str:
    made = hashlib.sha256(module.text().encode())
    for array in arrays:
        made.update(np.ascontiguousarray(array).tobytes())
    return made.hexdigest()[:24]


class _Watcher:
    """Compares local values with the global ones they stand for, as they are computed."""

    def __init__(
        self, sharded: Module, local: Module, places: dict[Value, list[Placed]], expected: Expected
    ) -> None:
        self.local = local
        self.expected = expected
        self.stands: dict[Value, list[tuple[Value, Placed]]] = defaultdict(list)
        for value, placed in places.items():
            for one in placed if value.node is not None else ():
                self.stands[one.value].append((value, one))
        self.names = {
            v: name for f in sharded.functions.values() for v, name in value_names(f).items()
        }
        self.seen: dict[Value, int] = defaultdict(int)
        self.compared = 0
        self.noise: set[Value] = set()  # values that rounding has made, or that are made of such
        self.program: LocalProgram | None = None

    def see(self, node: Node, results: Sequence[Stacked]) -> None:
        """Compare what a node of the local program gave."""
        for local, stack in zip(node.results, results, strict=True):
            for value, placed in self.stands.get(local, ()):
                if isinstance(value.type, TensorType):
                    self.compare(value, placed, stack)

    def scale(self, value: Value) -> float:
        """What rounding may leave of large operands that cancel, as a size to compare with."""
        found = 0.0
        for operand in value.node.operands if value.node else ():
            times = self.expected.get(operand)
            if times and times[-1].dtype.kind not in "biu" and times[-1].size:
                sizes = np.abs(times[-1].astype(np.complex128))
                found = max(found, float(sizes[np.isfinite(sizes)].max(initial=0.0)))
        return _CANCELLED * found

    def compare(self, value: Value, placed: Placed, stack: Stacked) -> None:
        times = self.expected.get(value, [])
        turn = self.seen[value]
        self.seen[value] += 1
        if turn >= len(times):
            return
        assert self.program is not None and isinstance(value.type, TensorType)
        mesh = self.program.mesh
        whole = assemble(
            _paid(stack, placed, mesh), value.type.sizes, sharding_of(placed.split, "mesh"), mesh
        )
        loc = value.node.loc if value.node else UNKNOWN
        found = difference(self.names.get(value, "a value"), whole, times[turn], loc)
        self.compared += 1
        if found.is_close:
            self.noise.discard(value)
            return
        scaled = difference(found.name, whole, times[turn], loc, self.scale(value))
        operands = value.node.operands if value.node else ()
        if not scaled.is_close and self.noise.isdisjoint(operands):
            raise _Found(found)
        self.noise.add(value)
