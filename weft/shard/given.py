"""The annotated shardings of a program, before propagation."""

from __future__ import annotations

from collections.abc import Mapping

from weft.ir.attrs import Attrs
from weft.ir.module import Function, Module, Node, Value
from weft.mesh import Mesh
from weft.ops.control import Call
from weft.ops.distributed.annotations import ResultShardings, sharding_attribute, shardings_of
from weft.ops.distributed.sharding import (
    ManualComputation,
    NamedComputation,
    Reshard,
    ShardingConstraint,
)
from weft.shard.closing import unsplit


def given_results(node: Node, module: Module) -> ResultShardings:
    """The annotated shardings of a node's results."""
    match node.op:
        case ShardingConstraint(sharding=given) | Reshard(sharding=given):
            return (given,)
        case ManualComputation(out_shardings=shardings):
            return shardings
        case NamedComputation(out_shardings=made):
            return (None,) * len(node.results) if made is None else made
        case Call(callee=callee):
            given_here = shardings_of(node)
            if any(s is not None for s in given_here):
                return given_here
            return _call_shardings(module.function(callee).res_attrs, node.results, module.meshes)
    return shardings_of(node) if node.attrs else (None,) * len(node.results)


def given_args(function: Function, module: Module, *, called: bool) -> ResultShardings:
    """The annotated shardings of a function's arguments."""
    if not called:
        shown = function.arg_attrs or ((),) * len(function.body.args)
        return tuple(sharding_attribute(attrs) for attrs in shown)
    return _call_shardings(function.arg_attrs, function.body.args, module.meshes)


def _call_shardings(
    shown: tuple[Attrs, ...], values: tuple[Value, ...], meshes: Mapping[str, Mesh]
) -> ResultShardings:
    """Shardings that a call takes from its function: for all values if one is on a mesh."""
    if not any(shown):
        return (None,) * len(values)
    shardings = tuple(sharding_attribute(attrs) for attrs in shown)
    for sharding in shardings:
        if sharding is not None and not _is_one_device(sharding.resolve(meshes)):
            opened = [unsplit(v.type, sharding.mesh, is_open=True) for v in values]
            return tuple(s or o for s, o in zip(shardings, opened, strict=True))
    return (None,) * len(values)


def _is_one_device(mesh: Mesh) -> bool:
    return not mesh.axes and bool(mesh.device_ids)
