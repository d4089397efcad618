"""Programs on one device: already local."""

from __future__ import annotations

from dataclasses import replace

from weft.ir.attrs import Attrs
from weft.ir.module import Function, Module, Value
from weft.ir.names import GLOBAL, LOCAL_SHARDING, SHARDING
from weft.ir.op import Op
from weft.ir.types import TensorType, Type
from weft.ir.write import SHARDINGS
from weft.mesh import Mesh
from weft.ops.control import Call, Case, If, While
from weft.ops.slicing import Concatenate, Slice
from weft.partition.piece import sharding_of
from weft.partition.structural.structure import STRUCTURE

# Ops whose handlers change nothing where no value is split.
_AS_WRITTEN: tuple[type[Op], ...] = (While, If, Case, Call, Slice, Concatenate)
_CHANGED = frozenset(STRUCTURE) - {*_AS_WRITTEN}


def is_single_device(module: Module) -> bool:
    """Whether a program has one device, and no op needs partitioning."""
    if any(mesh.axes for mesh in module.meshes.values()):
        return False
    if any(
        name == SHARDING for f in module.functions.values() for a in _borders(f) for name, _ in a
    ):
        return False
    return not any(
        type(node.op) in _CHANGED or any(map(_is_empty, node.types)) for node in module.nodes()
    )


def _is_empty(type: Type) -> bool:
    """Whether a tensor has no elements, so that partitioning replaces it by a constant."""
    return isinstance(type, TensorType) and 0 in type.shape


def _borders(function: Function) -> tuple[Attrs, ...]:
    return (*function.arg_attrs, *function.res_attrs)


def as_local(module: Module, name: str) -> Module:
    """The program of one device, with replicated shardings on arguments and results."""
    functions = {n: _with_boundary_shardings(f, name) for n, f in module.functions.items()}
    tables = {n: table for n, table in module.tables.items() if n != SHARDINGS}
    return replace(module, functions=functions, meshes={name: Mesh()}, tables=tables)


def _with_boundary_shardings(function: Function, mesh: str) -> Function:
    body = function.body
    inside = function.arg_attrs or ((),) * len(body.args)
    outside = function.res_attrs or ((),) * len(body.results)
    return replace(
        function,
        arg_attrs=tuple([_whole(v, a, mesh) for v, a in zip(body.args, inside, strict=True)]),
        res_attrs=tuple([_whole(v, a, mesh) for v, a in zip(body.results, outside, strict=True)]),
    )


def _whole(value: Value, attrs: Attrs, mesh: str) -> Attrs:
    if not isinstance(value.type, TensorType):
        return attrs
    sharding = sharding_of(((),) * value.type.rank, mesh)
    return tuple(sorted([*attrs, (LOCAL_SHARDING, str(sharding)), (GLOBAL, str(value.type))]))
