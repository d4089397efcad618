"""Between dims and factors: a tensor's sharding as the axes that split each factor, and back."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from weft.ir.rule import Dims, Rule
from weft.mesh import Axis, DimSharding, Mesh, Sharding
from weft.mesh.algebra import append_merged, part, size_of, total_size


@dataclass(slots=True)
class FactorSharding:
    """How one factor is split in one tensor."""

    axes: tuple[Axis, ...] = ()
    overflow: tuple[Axis, ...] = ()  # axes of the dim that do not fit into this factor
    is_closed: bool = False
    is_minor_most: bool = False


@dataclass(slots=True)
class TensorFactors:
    """How the factors of one tensor are split, and the axes that must not split it."""

    factors: dict[int, FactorSharding] = field(default_factory=dict)
    replicated: tuple[Axis, ...] = ()
    unreduced: tuple[Axis, ...] = ()


class _Rest:
    """The axes of a dim that are not yet given to a factor, the first perhaps in part."""

    def __init__(self, axes: tuple[Axis, ...], mesh: Mesh) -> None:
        self.axes = list(axes)
        self.mesh = mesh

    @property
    def size(self) -> int:
        return size_of(self.axes[0], self.mesh)

    def take(self, size: int) -> Axis:
        """Take the major part of that size from the first axis."""
        axis = self.axes[0]
        whole = self.size
        if size == whole:
            return self.axes.pop(0)
        self.axes[0] = part(axis.name, axis.before * size, whole // size, self.mesh)
        return part(axis.name, axis.before, size, self.mesh)

    def all(self) -> tuple[Axis, ...]:
        """Take what is left, neighbours merged."""
        taken: list[Axis] = []
        for axis in self.axes:
            append_merged(taken, axis, self.mesh)
        self.axes = []
        return tuple(taken)


def project(
    sharding: Sharding | None, dims: Dims, sizes: tuple[int, ...], mesh: Mesh
) -> TensorFactors:
    """The sharding of a tensor as axes of its factors; axes are cut where a factor is full."""
    found = TensorFactors()
    for dim, factors in enumerate(dims):
        given = sharding.dims[dim] if sharding else DimSharding(is_open=True)
        _project_dim(found, given, factors, sizes, mesh)
    if sharding:
        found.replicated = sharding.replicated
        found.unreduced = sharding.unreduced
    return found


def _project_dim(
    found: TensorFactors,
    given: DimSharding,
    factors: tuple[int, ...],
    sizes: tuple[int, ...],
    mesh: Mesh,
) -> None:
    if not given.axes:
        for factor in factors:
            minor_most = factor == factors[-1]
            found.factors[factor] = FactorSharding((), (), not given.is_open, minor_most)
        return
    rest = _Rest(given.axes, mesh)
    overflowed = False
    for factor in factors:
        entry = found.factors[factor] = FactorSharding(is_minor_most=factor == factors[-1])
        if overflowed:
            # What comes after an overflow cannot be split any more.
            entry.is_closed = True
            return
        entry.is_closed = not given.is_open
        if entry.is_minor_most:
            entry.axes = rest.all()  # it may be split unevenly
            continue
        room = sizes[factor]
        taken: list[Axis] = []
        while rest.axes and (rest.size == 1 or math.gcd(room, rest.size) > 1):
            common = math.gcd(room, rest.size)
            taken.append(rest.take(common))
            room //= common
        entry.axes = tuple(taken)
        if room > 1 and rest.axes:
            overflowed = True
            entry.overflow = rest.all()


def assemble(
    tensor: TensorFactors, dims: Dims, sizes: tuple[int, ...], name: str | Mesh, mesh: Mesh
) -> Sharding:
    """The sharding of a tensor from the axes of its factors."""
    made = []
    for factors in dims:
        axes: list[Axis] = []
        closed = False
        for factor in factors:
            entry = tensor.factors[factor]  # nothing behind an overflow is looked at
            closed |= entry.is_closed
            _extend(axes, entry.axes, mesh)
            if entry.overflow:
                _extend(axes, entry.overflow, mesh)
                break
            if total_size(entry.axes, mesh) < sizes[factor]:
                break  # splitting a more minor factor would need a strided view
        made.append(DimSharding(tuple(axes), not closed))
    return Sharding(name, tuple(made), tensor.replicated, tensor.unreduced)


def _extend(axes: list[Axis], more: tuple[Axis, ...], mesh: Mesh) -> None:
    for n, axis in enumerate(more):
        if n == 0:
            append_merged(axes, axis, mesh)
        else:
            axes.append(axis)


def factor_sizes(rule: Rule) -> tuple[int, ...]:
    """The sizes of a rule's factors."""
    return tuple(f.size for f in rule.factors)
