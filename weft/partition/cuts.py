"""Axes cut into parts that two splits have in common, so that they can be compared part by part."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from weft.mesh import Axis, Mesh
from weft.mesh.algebra import Axes, DimAxes, cut, size_of

Cuts = dict[str, tuple[int, ...]]  # for each axis the places where its parts end


def aligned(splits: Iterable[DimAxes], unreduced: Iterable[Axes], mesh: Mesh) -> Cuts:
    """For each axis the places where it must be cut for all splits to be made of whole parts.

    An axis is cut where some sub-axis begins or ends, and where the pieces of a dim in one split
    and in another would otherwise not line up.
    """
    splits = list(splits)
    cuts: dict[str, set[int]] = {}
    for axes in [axes for split in splits for axes in split] + list(unreduced):
        for axis in axes:
            end = axis.before * size_of(axis, mesh)
            cuts.setdefault(axis.name, set()).update((axis.before, end))
    for dims in zip(*splits, strict=True):
        products = {product for axes in dims for product, _ in _products(axes, mesh)}
        for axes in dims:
            _cut_at(products, axes, mesh, cuts)
    return {name: _chain(places, mesh.axis_sizes[name]) for name, places in cuts.items()}


def _products(axes: Axes, mesh: Mesh) -> Iterator[tuple[int, Axis]]:
    """The number of pieces after each axis."""
    product = 1
    for axis in axes:
        product *= size_of(axis, mesh)
        yield product, axis


def _cut_at(products: set[int], axes: Axes, mesh: Mesh, cuts: dict[str, set[int]]) -> None:
    for after, axis in _products(axes, mesh):
        size = size_of(axis, mesh)
        begin = after // size
        for product in products:
            if begin < product < after and product % begin == 0 and after % product == 0:
                cuts[axis.name].add(axis.before * (product // begin))


def _chain(places: set[int], whole: int) -> tuple[int, ...]:
    """The cuts of one axis, each dividing the next; others cannot be made together."""
    chain = [1]
    for place in sorted(places | {whole}):
        if place > chain[-1] and place % chain[-1] == 0 and whole % place == 0:
            chain.append(place)
    return tuple(chain)


def refined(axes: Axes, cuts: Cuts, mesh: Mesh) -> Axes:
    """The axes as parts between cuts."""
    return tuple([piece for axis in axes for piece in cut(axis, cuts.get(axis.name, ()), mesh)])
