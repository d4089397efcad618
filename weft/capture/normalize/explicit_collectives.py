"""Explicit sdy collectives in a program, rewritten as sharding constraints and reshards.

On global values they are the identity. Each determines the shardings of its operand and result:
the operand gets a constraint, and the result a reshard, which partition turns back into a
collective.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from weft.ir.module import Module, Node, apply
from weft.ir.rebuild import rewrite
from weft.mesh import DimSharding, Mesh, Sharding, parse_axes
from weft.mesh.algebra import Axes, append_merged, difference, merged
from weft.ops.distributed.sharding import (
    SHARDY_COLLECTIVES,
    ReplicatedToUnreduced,
    Reshard,
    ShardedToUnreduced,
    ShardingConstraint,
    ShardyAllGather,
    ShardyAllReduce,
    ShardyAllSlice,
    ShardyAllToAll,
    ShardyCollectivePermute,
    ShardyReduceScatter,
)

_LIST = re.compile(r"\{[^{}]*\}")
_MOVE = re.compile(r"(\{[^{}]*\}): (\d+)->(\d+)")


def reshard_by_collectives(module: Module) -> Module:
    """The module with reshards in place of Shardy's collectives."""
    kinds = frozenset(SHARDY_COLLECTIVES)
    if all(type(node.op) not in kinds for node in module.nodes()):
        return module

    def renew(node: Node) -> Node | None:
        op, (value,) = node.op, node.operands
        if not isinstance(op, SHARDY_COLLECTIVES):
            return None
        # The source of a permute's shards is not in its attributes.
        if not isinstance(op, ShardyCollectivePermute):
            before = ShardingConstraint(_operand_sharding(op, module.meshes))
            (value,) = apply(before, value, loc=node.loc).results
        return apply(Reshard(op.out_sharding), value, attrs=node.attrs, loc=node.loc)

    return rewrite(module, renew, kinds=SHARDY_COLLECTIVES)


def _operand_sharding(op: object, meshes: Mapping[str, Mesh]) -> Sharding:
    """The sharding of a collective's operand, inferred from its kind and its result."""
    match op:
        case ShardyAllGather(gathering_axes=text, out_sharding=out):
            return _more(out, _lists(text), meshes)
        case ShardyAllSlice(slicing_axes=text, out_sharding=out):
            return _fewer(out, _lists(text), meshes)
        case ShardyAllToAll(params=text, out_sharding=out):
            moves = [(parse_axes(m[1]), int(m[2]), int(m[3])) for m in _MOVE.finditer(text)]
            removed: list[Axes] = [()] * len(out.dims)
            back: list[Axes] = [()] * len(out.dims)
            for axes, source, target in moves:
                removed[target], back[source] = axes, axes
            return _more(_fewer(out, removed, meshes), back, meshes)
        case ShardyAllReduce(reduction_axes=text, out_sharding=out):
            return _unreduced(out, parse_axes(text), meshes)
        case ShardyReduceScatter(reduce_scatter_axes=text, out_sharding=out):
            lists = _lists(text)
            return _unreduced(_fewer(out, lists, meshes), sum(lists, ()), meshes)
        case ShardedToUnreduced(axes=text, out_sharding=out):
            lists = _lists(text)
            return _more(_settled(out, sum(lists, ()), meshes), lists, meshes)
        case ReplicatedToUnreduced(axes=text, out_sharding=out):
            return _settled(out, parse_axes(text), meshes)
    raise AssertionError(f"{op} is not a collective")


def _lists(text: str) -> list[Axes]:
    """The axes of each dim: `#sdy<list_of_axis_ref_lists[{"x"}, {}]>`."""
    return [parse_axes(found) for found in _LIST.findall(text)]


def _more(out: Sharding, lists: Sequence[Axes], meshes: Mapping[str, Mesh]) -> Sharding:
    """The sharding with further axes, the minor ones, at each dim."""
    mesh, dims = out.resolve(meshes), []
    for dim, axes in zip(out.dims, lists, strict=True):
        made = list(dim.axes)
        for axis in axes:
            append_merged(made, axis, mesh)
        dims.append(DimSharding(tuple(made)))
    return replace(out, dims=tuple(dims))


def _fewer(out: Sharding, lists: Sequence[Axes], meshes: Mapping[str, Mesh]) -> Sharding:
    """The sharding without these axes of each dim."""
    mesh, pairs = out.resolve(meshes), zip(out.dims, lists, strict=True)
    dims = [DimSharding(difference(dim.axes, axes, mesh)) for dim, axes in pairs]
    return replace(out, dims=tuple(dims))


def _unreduced(out: Sharding, axes: Axes, meshes: Mapping[str, Mesh]) -> Sharding:
    """The sharding with these axes added to its unreduced ones."""
    return replace(out, unreduced=merged((*out.unreduced, *axes), out.resolve(meshes)))


def _settled(out: Sharding, axes: Axes, meshes: Mapping[str, Mesh]) -> Sharding:
    """The sharding without these unreduced axes."""
    return replace(out, unreduced=difference(out.unreduced, axes, out.resolve(meshes)))
