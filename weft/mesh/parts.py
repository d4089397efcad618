"""Atoms: the devices' numbers taken apart into digits, as finely as a program uses them.

Device n of 8 on a mesh x=2, y=4 has a digit for x and one for y; a program that splits y in two
halves has three. An axis, a part of an axis or several neighbouring axes are then runs of digits,
whatever mesh they belong to.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from functools import cached_property, lru_cache

import numpy as np

from weft.errors import WeftError
from weft.ir.types import Array
from weft.mesh.algebra import size_of
from weft.mesh.axes import Axis, Mesh
from weft.records import dataclass

DigitRun = tuple[int, int]  # the stride and the size of a run of digits


@dataclass(frozen=True)
class Atoms:
    """The sizes of the digits, major first; their product is the number of devices."""

    sizes: tuple[int, ...]

    @cached_property
    def count(self) -> int:
        """The number of devices."""
        return math.prod(self.sizes)

    @cached_property
    def strides(self) -> tuple[int, ...]:
        """How far apart in number two devices are that differ by one in a digit."""
        return tuple(math.prod(self.sizes[n + 1 :]) for n in range(len(self.sizes)))

    def dims(self, span: DigitRun) -> tuple[int, ...] | None:
        """The digits that make up a run, major first; None if it is not a union of digits."""
        stride, size = span
        found = tuple(n for n, s in enumerate(self.strides) if stride <= s < stride * size)
        whole = math.prod(self.sizes[n] for n in found) == size
        begins = not found or self.strides[found[-1]] == stride
        return found if whole and begins else None

    def dims_of(self, spans: Iterable[DigitRun]) -> tuple[int, ...] | None:
        """The digits of several runs, one after the other."""
        found: list[int] = []
        for span in spans:
            dims = self.dims(span)
            if dims is None:
                return None
            found += dims
        return tuple(found)

    def digits(self, places: Array) -> list[Array]:
        """The digits of device numbers."""
        return [
            places // stride % size for stride, size in zip(self.strides, self.sizes, strict=True)
        ]

    def index(self, dims: Sequence[int], places: Array) -> Array:
        """The number that some digits of device numbers make, the first one major."""
        digits = self.digits(places)
        found = np.zeros_like(places)
        for dim in dims:
            found = found * self.sizes[dim] + digits[dim]
        return found


def atoms_of(count: int, spans: Iterable[DigitRun]) -> Atoms:
    """Digits of which as many runs as possible are unions; runs that cross others are left out."""
    cuts = [1, count]
    for stride, size in spans:
        for cut in (stride, stride * size):
            # Cuts must divide each other, as places of one number system do: 6 devices cut at 2
            # cannot be cut at 3 as well. The first spans win.
            if cut not in cuts and _fits(cut, cuts):
                cuts.append(cut)
    cuts.sort(reverse=True)
    sizes = [high // low for high, low in itertools.pairwise(cuts)]
    return Atoms(tuple(size for size in sizes if size > 1) or (1,))


def _fits(cut: int, cuts: list[int]) -> bool:
    return all(max(cut, other) % min(cut, other) == 0 for other in cuts)


def span_of(axis: Axis, mesh: Mesh) -> DigitRun:
    """The run of digits of an axis, or part of one."""
    names = [name for name, _ in mesh.axes]
    if axis.name not in names:
        raise WeftError(f"the mesh has no axis {axis}", help=f"known: {', '.join(names)}")
    minor = math.prod(size for _, size in mesh.axes[names.index(axis.name) + 1 :])
    size = size_of(axis, mesh)
    return mesh.axis_sizes[axis.name] // (axis.before * size) * minor, size


def mesh_spans(mesh: Mesh) -> list[DigitRun]:
    """The run of digits of every axis of a mesh."""
    return [span_of(Axis(name), mesh) for name, _ in mesh.axes]


def apart(atoms: Atoms, spans: Sequence[DigitRun]) -> tuple[Atoms, tuple[int, ...]] | None:
    """Digits that tell some runs apart, and which of them are in none; None if runs cross."""
    fine = atoms_of(atoms.count, [*zip(atoms.strides, atoms.sizes, strict=True), *spans])
    found = fine.dims_of(spans)
    if found is None:
        return None
    return fine, tuple([n for n, s in enumerate(fine.sizes) if s > 1 and n not in found])


@lru_cache(maxsize=1 << 10)
def common(first: Atoms, second: Atoms) -> Atoms:
    """The coarsest digits that both are unions of."""
    both = [*zip(first.strides, first.sizes, strict=True)]
    made = atoms_of(first.count, [*both, *zip(second.strides, second.sizes, strict=True)])
    crossing = [s for s in second.strides if s not in made.strides]
    if crossing or first.count != second.count:
        raise WeftError(
            f"meshes {first.sizes} and {second.sizes} cannot be combined: their axes do not "
            "subdivide each other",
            help="use meshes whose axes are parts of one another",
        )
    return made
