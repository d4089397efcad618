"""Policies for a whole program: the weights of the per-op choices.

The choice of an op is local: it sees its operands and the propagated shardings of its results. With
many conflicts another policy may send less: for instance, to split the batch dim of all activations
by an axis, and to gather weights that are split by it (as FSDP does).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field

from weft.ir.module import Module, Value
from weft.ir.types import TensorType
from weft.mesh import Axis, Mesh
from weft.mesh.algebra import Axes, DimAxes, overlaps, total_size
from weft.partition.strategy.dim_classes import DimClasses, ValueDim, dim_classes, rank_of
from weft.records import dataclass


@dataclass(frozen=True, slots=True)
class Policy:
    """The weights of costs besides the reshards of an op's operands."""

    result_weight: float = 1.1  # weight of propagated (or overridden) result splits
    # Splits that override the propagated ones.
    overrides: Mapping[Value, DimAxes] = field(default_factory=dict)
    avoids_full_gathers: bool = False  # whether full gathers are penalized
    by_time: bool = False  # whether reshards cost a machine's seconds; else bytes


def overriding(
    module: Module, requested: Mapping[Value, DimAxes], mesh: Mesh
) -> Iterator[Mapping[Value, DimAxes]]:
    """Splits that prioritize one class of dims over all others.

    The class is that with the most elements among the split dims of arguments. It is split by the
    arguments' axes, then also by all other axes. `requested` has the propagated splits.
    """
    classes = dim_classes(module)
    axes = _given_axes(module, classes, requested)
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
            yield dict(_overridden(held[root], some, requested, mesh))


def _given_axes(
    module: Module, classes: DimClasses, splits: Mapping[Value, DimAxes]
) -> dict[ValueDim, list[Axes]]:
    """The classes of split dims of arguments, with their axes."""
    by_class: dict[ValueDim, list[Axes]] = {}
    for function in module.functions.values():
        for value in function.body.args:
            for dim, axes in enumerate(splits.get(value, ())):
                if axes:
                    by_class.setdefault(classes.find((value, dim)), []).append(axes)
    return by_class


def _wider(found: list[Axes], mesh: Mesh) -> Iterator[Axes]:
    """The longest list of axes found, and that list with all other axes of the mesh."""
    most = max(found, key=lambda axes: total_size(axes, mesh))
    yield most
    every = [Axis(name) for name, size in mesh.axes if size > 1]
    others = [a for a in every if not _meets(a, most)]
    if others:
        yield (*most, *others)


def _meets(axis: Axis, axes: Axes) -> bool:
    return any(overlaps(axis, other) for other in axes)


def _overridden(
    dims: Sequence[ValueDim], axes: Axes, requested: Mapping[Value, DimAxes], mesh: Mesh
) -> Iterator[tuple[Value, DimAxes]]:
    """Splits of the values with a dim of the class: its first such dim has the axes."""
    done: set[Value] = set()
    for value, dim in dims:
        type = value.type
        assert isinstance(type, TensorType)
        if value in done or type.sizes[dim] % total_size(axes, mesh):
            continue
        done.add(value)
        old = requested.get(value, ((),) * type.rank)
        split = [tuple(a for a in kept if not _meets(a, axes)) for kept in old]
        split[dim] = axes
        yield value, tuple(split)
