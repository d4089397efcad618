"""Shardings of tensors by factor: projected from dims as Shardy does it, and assembled again."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from weft.ir.rule import Dims, Rule
from weft.mesh import Axis, DimSharding, Mesh, Sharding
from weft.mesh.algebra import extend_merged, merged, take_common, total_size
from weft.records import dataclass


class FactorSharding(NamedTuple):
    """The sharding of one factor in one tensor."""

    axes: tuple[Axis, ...] = ()
    overflow: tuple[Axis, ...] = ()  # overflow: axes of the dim that do not fit into this factor
    is_closed: bool = False
    is_minor_most: bool = False


# The factors of unsplit dims: not closed and closed, and of each not minor-most and minor-most.
_UNSPLIT = tuple(tuple(FactorSharding((), (), c, m) for m in (False, True)) for c in (False, True))


@dataclass(slots=True)
class TensorFactors:
    """The factor shardings of one tensor, and its replicated axes."""

    factors: dict[int, FactorSharding]
    replicated: tuple[Axis, ...] = ()
    unreduced: tuple[Axis, ...] = ()


def project(
    sharding: Sharding | None, dims: Dims, sizes: tuple[int, ...], mesh: Mesh
) -> TensorFactors:
    """Project a tensor's sharding to its factors; axes are cut where a factor is full."""
    tensor = TensorFactors(_open_factors(dims).copy())
    if sharding is None:
        return tensor
    for dim, factors in zip(sharding.dims, dims, strict=False):
        if dim.axes:
            _split(tensor, dim, factors, sizes, mesh)
        elif not dim.is_open:
            for factor in factors:
                tensor.factors[factor] = _UNSPLIT[True][factor == factors[-1]]
    tensor.replicated = sharding.replicated
    tensor.unreduced = sharding.unreduced
    return tensor


@lru_cache(maxsize=4096)
def _open_factors(dims: Dims) -> dict[int, FactorSharding]:
    """The factors of a tensor without a sharding."""
    return {f: _UNSPLIT[False][f == factors[-1]] for factors in dims for f in factors}


def _split(
    tensor: TensorFactors,
    dim: DimSharding,
    factors: tuple[int, ...],
    sizes: tuple[int, ...],
    mesh: Mesh,
) -> None:
    is_closed = not dim.is_open
    if len(factors) == 1:
        axes = merged(dim.axes, mesh) if len(dim.axes) > 1 else dim.axes
        tensor.factors[factors[0]] = FactorSharding(axes, (), is_closed, True)
        return
    rest = list(dim.axes)
    for n, factor in enumerate(factors):
        if factor == factors[-1]:  # it may be split unevenly
            tensor.factors[factor] = FactorSharding(merged(rest, mesh), (), is_closed, True)
            return
        common, room = take_common(rest, sizes[factor], mesh)
        if room > 1 and rest:
            overflow = merged(rest, mesh)
            tensor.factors[factor] = FactorSharding(tuple(common), overflow, is_closed, False)
            # Factors after an overflow cannot be split; Shardy checks only the next one.
            following, *others = factors[n + 1 :]
            tensor.factors[following] = _UNSPLIT[True][following == factors[-1]]
            for other in others:
                del tensor.factors[other]
            return
        tensor.factors[factor] = FactorSharding(tuple(common), (), is_closed, False)


def assemble(
    tensor: TensorFactors, dims: Dims, sizes: tuple[int, ...], name: str | Mesh, mesh: Mesh
) -> Sharding:
    """The sharding of a tensor from the axes of its factors."""
    dim_shardings = []
    for factors in dims:
        if len(factors) == 1 and not tensor.factors[factors[0]].overflow:
            entry = tensor.factors[factors[0]]
            dim_shardings.append(DimSharding(entry.axes, not entry.is_closed))
            continue
        axes: list[Axis] = []
        closed = False
        for factor in factors:
            entry = tensor.factors[factor]  # factors after an overflow are ignored
            closed |= entry.is_closed
            extend_merged(axes, entry.axes, mesh)
            if entry.overflow:
                extend_merged(axes, entry.overflow, mesh)
                break
            if not entry.is_minor_most and total_size(entry.axes, mesh) < sizes[factor]:
                break  # splitting a more minor factor would give strided shards
        dim_shardings.append(DimSharding(tuple(axes), not closed))
    return Sharding(name, tuple(dim_shardings), tensor.replicated, tensor.unreduced)


def factor_sizes(rule: Rule) -> tuple[int, ...]:
    """The sizes of a rule's factors."""
    return tuple([f.size for f in rule.factors])
