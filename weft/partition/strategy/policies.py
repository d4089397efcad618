"""Policies for a whole program: what counts when factors are split, op by op.

An op sees its operands and what propagation says of its results, no further. Where many disagree,
another policy may send less: for instance, to split the batch of all activations by an axis, and
to gather weights that are split by it too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from weft.ir.module import Module, Value
from weft.ir.types import TensorType
from weft.mesh import Axis, Mesh
from weft.mesh.algebra import Axes, DimAxes, overlaps, total_size
from weft.partition.strategy.dim_classes import DimClasses, ValueDim, dim_classes, rank_of


@dataclass(frozen=True, slots=True)
class Policy:
    """What counts, besides the bytes that an op's operands need."""

    heed: float = 1.1  # how much, that results are split as propagation says, or wishes
    wishes: Mapping[Value, DimAxes] = field(default_factory=dict)  # in the place of propagation's
    is_shy: bool = False  # of gathers that leave every device with all of a tensor


def wishes(
    module: Module, given: Mapping[Value, DimAxes], mesh: Mesh
) -> Iterator[Mapping[Value, DimAxes]]:
    """Splits in which one class of dims comes first and all others give way.

    The class is the one with the most elements among those that arguments are split along. It is
    split as the arguments are, then by all other axes too. `given` is what propagation found.
    """
    classes = dim_classes(module)
    axes = _given_axes(module, classes, given)
    held: dict[ValueDim, list[ValueDim]] = {root: [] for root in axes}
    sizes = dict.fromkeys(axes, 0)
    for node in module.nodes():
        for value in node.results:
            for dim in range(rank_of(value)):
                root = classes.find((value, dim))
                if root in held:
                    held[root].append((value, dim))
                    sizes[root] += value.type.size  # type: ignore[union-attr]
    if sizes:
        root = max(sizes, key=lambda root: sizes[root])
        for some in _wider(axes[root], mesh):
            yield dict(_wished(held[root], some, given, mesh))


def _given_axes(
    module: Module, classes: DimClasses, given: Mapping[Value, DimAxes]
) -> dict[ValueDim, list[Axes]]:
    """The classes that arguments are split along, and by which axes."""
    found: dict[ValueDim, list[Axes]] = {}
    for function in module.functions.values():
        for value in function.body.args:
            for dim, axes in enumerate(given.get(value, ())):
                if axes:
                    found.setdefault(classes.find((value, dim)), []).append(axes)
    return found


def _wider(found: list[Axes], mesh: Mesh) -> Iterator[Axes]:
    """The most axes that were found, and those with all others of the mesh."""
    most = max(found, key=lambda axes: total_size(axes, mesh))
    yield most
    every = [Axis(name) for name, size in mesh.axes if size > 1]
    others = [a for a in every if not _meets(a, most)]
    if others:
        yield (*most, *others)


def _meets(axis: Axis, axes: Axes) -> bool:
    return any(overlaps(axis, other) for other in axes)


def _wished(
    dims: Sequence[ValueDim], axes: Axes, given: Mapping[Value, DimAxes], mesh: Mesh
) -> Iterator[tuple[Value, DimAxes]]:
    """Values with a dim of the class: the first such dim is split by the axes, others are not."""
    done: set[Value] = set()
    for value, dim in dims:
        type = value.type
        assert isinstance(type, TensorType)
        if value in done or type.sizes[dim] % total_size(axes, mesh):
            continue
        done.add(value)
        old = given.get(value, ((),) * type.rank)
        split = [tuple(a for a in kept if not _meets(a, axes)) for kept in old]
        split[dim] = axes
        yield value, tuple(split)
