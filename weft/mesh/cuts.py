"""Lists of axes, major first, refined into common parts and compared part by part."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from weft.mesh.algebra import (
    Axes,
    DimAxes,
    contains,
    cut,
    in_mesh_order,
    merged_axes,
    overlaps,
    size_of,
)
from weft.mesh.axes import Axis, Mesh

Cuts = dict[str, tuple[int, ...]]  # for each axis the products at which it is cut


def aligned(splits: Iterable[DimAxes], unreduced: Iterable[Axes], mesh: Mesh) -> Cuts:
    """The coarsest cuts of each axis for which all shardings consist of whole parts.

    An axis is cut where some sub-axis begins or ends, and where the shards of a dim under two
    shardings would otherwise not align.
    """
    splits = list(splits)
    cuts: dict[str, set[int]] = {}
    for axes in [axes for split in splits for axes in split] + list(unreduced):
        for axis in axes:
            end = axis.before * size_of(axis, mesh)
            cuts.setdefault(axis.name, set()).update((axis.before, end))
    # Shards of two splits of one dim align where the products of their axes agree: an axis that
    # spans such a product of the other split is cut there.
    for dims in zip(*splits, strict=True):
        products = {product for axes in dims for product, _ in _products(axes, mesh)}
        for axes in dims:
            _cut_at(products, axes, mesh, cuts)
    return {name: _chain(places, mesh.axis_sizes[name]) for name, places in cuts.items()}


def _products(axes: Axes, mesh: Mesh) -> Iterator[tuple[int, Axis]]:
    """The number of shards after each axis."""
    product = 1
    for axis in axes:
        product *= size_of(axis, mesh)
        yield product, axis


def _cut_at(products: set[int], axes: Axes, mesh: Mesh, cuts: dict[str, set[int]]) -> None:
    for after, axis in _products(axes, mesh):
        size = size_of(axis, mesh)
        begin = after // size
        for product in products:
            # `begin` shards lie before the axis: a product is a cut of it only in whole multiples
            # of these.
            if begin < product < after and product % begin == 0 and after % product == 0:
                cuts[axis.name].add(axis.before * (product // begin))


def _chain(places: set[int], whole: int) -> tuple[int, ...]:
    """The cuts of one axis that form a divisor chain; the others are dropped."""
    chain = [1]
    # Ascending: of two cuts that do not divide each other the more major one is kept.
    for place in sorted(places | {whole}):
        if place > chain[-1] and place % chain[-1] == 0 and whole % place == 0:
            chain.append(place)
    return tuple(chain)


def refined(axes: Axes, cuts: Cuts, mesh: Mesh) -> Axes:
    """The axes, split at the cuts."""
    return tuple([piece for axis in axes for piece in cut(axis, cuts.get(axis.name, ()), mesh)])


def as_set(axes: Iterable[Axis], mesh: Mesh) -> Axes:
    """Axes as a set: in mesh order."""
    return merged_axes(in_mesh_order(axes, mesh), mesh)


def disjoint(axes: Iterable[Axis], others: Sequence[Axis]) -> bool:
    """Whether two lists overlap nowhere."""
    return not any(overlaps(axis, other) for axis in axes for other in others)


def inside(axis: Axis, axes: Iterable[Axis]) -> bool:
    """Whether an axis lies within one of the list."""
    return any(contains(other, axis) for other in axes)


def cut_by(axes: Iterable[Axis], others: Sequence[Axis], mesh: Mesh) -> Axes:
    """The list without axes of size 1, cut at the ends of the others where sizes divide."""
    pieces: list[Axis] = []
    for axis in axes:
        if size_of(axis, mesh) > 1:
            near = [other for other in others if overlaps(axis, other)]
            ends = [other.before * size_of(other, mesh) for other in near]
            pieces += cut(axis, [*ends, *(other.before for other in near)], mesh)
    return tuple(pieces)


def without(axes: Iterable[Axis], others: Sequence[Axis], mesh: Mesh) -> Axes | None:
    """The axes minus the others; None if the difference is not a list of sub-axes."""
    left = []
    for axis in cut_by(axes, others, mesh):
        if inside(axis, others):
            continue
        # It overlaps in part although it was cut: sizes do not divide each other.
        if not disjoint((axis,), others):
            return None
        left.append(axis)
    return merged_axes(left, mesh)


def shared_start(axes: Axes, others: Axes, mesh: Mesh) -> tuple[Axes, Axes, Axes]:
    """The longest common prefix of two lists, and the remainder of each."""
    left, right = list(cut_by(axes, others, mesh)), list(cut_by(others, axes, mesh))
    count = 0
    while count < min(len(left), len(right)) and left[count] == right[count]:
        count += 1
    return (
        merged_axes(left[:count], mesh),
        merged_axes(left[count:], mesh),
        merged_axes(right[count:], mesh),
    )


def shared_end(axes: Axes, others: Axes, mesh: Mesh) -> tuple[Axes, Axes, Axes]:
    """The longest common suffix of two lists, and the remainder of each."""
    left, right = list(cut_by(axes, others, mesh)), list(cut_by(others, axes, mesh))
    count = 0
    while count < min(len(left), len(right)) and left[-1 - count] == right[-1 - count]:
        count += 1
    cut_left, cut_right = len(left) - count, len(right) - count
    return (
        merged_axes(left[cut_left:], mesh),
        merged_axes(left[:cut_left], mesh),
        merged_axes(right[:cut_right], mesh),
    )
