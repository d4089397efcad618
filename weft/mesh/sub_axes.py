"""Sub-axes: the mesh axes cut into factors, as finely as a program uses them.

The 8 devices of a mesh x=2, y=4 have the sub-axes (2, 4), and (2, 2, 2) in a program that splits y
in two halves. A device number is then a mixed-radix number, with one coordinate for each sub-axis,
major to minor. An axis, a sub-axis in Shardy's sense (an axis with pre-size and size) or several
neighbouring axes are spans of these, whatever mesh they belong to.
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

AxisSpan = tuple[int, int]  # neighbouring sub-axes: the minor one's stride, and their size


@dataclass(frozen=True)
class SubAxes:
    """The sizes of the sub-axes, major first; their product is the number of devices."""

    sizes: tuple[int, ...]

    @cached_property
    def count(self) -> int:
        """The number of devices."""
        return math.prod(self.sizes)

    @cached_property
    def strides(self) -> tuple[int, ...]:
        """The distance of device numbers that differ by one along a sub-axis."""
        return tuple(math.prod(self.sizes[n + 1 :]) for n in range(len(self.sizes)))

    def dims(self, span: AxisSpan) -> tuple[int, ...] | None:
        """The sub-axes of a span, major first; None if it cuts through one."""
        stride, size = span
        found = tuple(n for n, s in enumerate(self.strides) if stride <= s < stride * size)
        whole = math.prod(self.sizes[n] for n in found) == size
        begins = not found or self.strides[found[-1]] == stride
        return found if whole and begins else None

    def dims_of(self, spans: Iterable[AxisSpan]) -> tuple[int, ...] | None:
        """The sub-axes of several spans, one after the other."""
        numbers: list[int] = []
        for span in spans:
            dims = self.dims(span)
            if dims is None:
                return None
            numbers += dims
        return tuple(numbers)

    def coordinates(self, places: Array) -> list[Array]:
        """The coordinates of device numbers along each sub-axis."""
        return [
            places // stride % size for stride, size in zip(self.strides, self.sizes, strict=True)
        ]

    def index(self, dims: Sequence[int], places: Array) -> Array:
        """The linear index of devices along some sub-axes, the first one major."""
        coordinates = self.coordinates(places)
        found = np.zeros_like(places)
        for dim in dims:
            found = found * self.sizes[dim] + coordinates[dim]
        return found


def sub_axes_of(count: int, spans: Iterable[AxisSpan]) -> SubAxes:
    """Sub-axes that no span cuts through; spans that cross earlier ones are left out."""
    cuts = [1, count]
    for stride, size in spans:
        for cut in (stride, stride * size):
            # Cuts must divide each other, as in a mixed-radix number: 6 devices cut at 2
            # cannot be cut at 3 as well. The first spans win.
            if cut not in cuts and _fits(cut, cuts):
                cuts.append(cut)
    cuts.sort(reverse=True)
    sizes = [high // low for high, low in itertools.pairwise(cuts)]
    return SubAxes(tuple(size for size in sizes if size > 1) or (1,))


def _fits(cut: int, cuts: list[int]) -> bool:
    return all(max(cut, other) % min(cut, other) == 0 for other in cuts)


def span_of(axis: Axis, mesh: Mesh) -> AxisSpan:
    """The span of an axis, or of a sub-axis of it."""
    names = [name for name, _ in mesh.axes]
    if axis.name not in names:
        raise WeftError(f"the mesh has no axis {axis}", help=f"known: {', '.join(names)}")
    minor = math.prod(size for _, size in mesh.axes[names.index(axis.name) + 1 :])
    size = size_of(axis, mesh)
    return mesh.axis_sizes[axis.name] // (axis.before * size) * minor, size


def mesh_spans(mesh: Mesh) -> list[AxisSpan]:
    """The span of every axis of a mesh."""
    return [span_of(Axis(name), mesh) for name, _ in mesh.axes]


def separate_spans(
    sub_axes: SubAxes, spans: Sequence[AxisSpan]
) -> tuple[SubAxes, tuple[int, ...]] | None:
    """Sub-axes that separate some spans, and those outside of them; None if spans cross."""
    fine = sub_axes_of(
        sub_axes.count, [*zip(sub_axes.strides, sub_axes.sizes, strict=True), *spans]
    )
    found = fine.dims_of(spans)
    if found is None:
        return None
    return fine, tuple([n for n, s in enumerate(fine.sizes) if s > 1 and n not in found])


@lru_cache(maxsize=1 << 10)
def common_refinement(first: SubAxes, second: SubAxes) -> SubAxes:
    """The coarsest common refinement."""
    both = [*zip(first.strides, first.sizes, strict=True)]
    refinement = sub_axes_of(first.count, [*both, *zip(second.strides, second.sizes, strict=True)])
    crossing = [s for s in second.strides if s not in refinement.strides]
    if crossing or first.count != second.count:
        raise WeftError(
            f"meshes {first.sizes} and {second.sizes} cannot be combined: their axes do not "
            "subdivide each other",
            help="use meshes whose axes are parts of one another",
        )
    return refinement
