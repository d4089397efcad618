"""Removing all shardings from a module."""

from __future__ import annotations

from dataclasses import replace

from weft.errors import Unsupported
from weft.ir.attrs import Attrs
from weft.ir.gc_pause import without_gc
from weft.ir.module import Function, Module, Node, Region, Value
from weft.ir.write import SHARDINGS
from weft.ops.distributed.sharding import (
    Annotation,
    ManualComputation,
    NamedComputation,
    ShardingGroup,
    ShardyConstant,
)
from weft.ops.shape import Constant


def drop_shardings(module: Module) -> Module:
    """The program without shardings, meshes and sdy ops; its results stay the same."""
    with without_gc():
        return replace(
            module,
            functions={name: _function(f) for name, f in module.functions.items()},
            meshes={},
            attrs=_plain(module.attrs),
            tables={name: table for name, table in module.tables.items() if name != SHARDINGS},
        )


def _function(function: Function) -> Function:
    dropper = _Dropper()
    return replace(
        function,
        body=dropper.region(function.body),
        arg_attrs=_all_plain(function.arg_attrs),
        res_attrs=_all_plain(function.res_attrs),
        attrs=_plain(function.attrs),
    )


def _plain(attrs: Attrs) -> Attrs:
    """The attributes without sdy ones."""
    return tuple([a for a in attrs if not a[0].startswith("sdy.")]) if attrs else attrs


def _all_plain(attrs: tuple[Attrs, ...]) -> tuple[Attrs, ...]:
    kept = tuple([_plain(a) for a in attrs])
    return kept if any(kept) else ()


class _Dropper:
    """Rebuilds one function."""

    def __init__(self) -> None:
        self.became: dict[Value, Value] = {}

    def region(self, region: Region) -> Region:
        out: list[Node] = []
        self.nodes(region, out)
        results = self.read(region.results)
        return Region(region.args, out, results, region.loc, region.arg_locs)

    def nodes(self, region: Region, out: list[Node]) -> None:
        for node in region.nodes:
            self.node(node, out)

    def read(self, values: tuple[Value, ...]) -> tuple[Value, ...]:
        became = self.became
        return tuple([became.get(v, v) for v in values])

    def node(self, node: Node, out: list[Node]) -> None:
        op = node.op
        match op:
            case ShardingGroup():
                return
            case Annotation():
                self.become(node.results, self.read(node.operands))
                return
            case NamedComputation():  # its body is inlined
                (body,) = node.regions
                self.become(body.args, self.read(node.operands))
                self.nodes(body, out)
                self.become(node.results, self.read(body.results))
                return
            case ManualComputation():
                raise Unsupported(
                    f"{op.name} cannot be dropped: its body works on local shards along "
                    f"{', '.join(axis.name for axis in op.manual_axes)}",
                    help="partition the program, or lower it without shard_map",
                    loc=node.loc,
                )
            case ShardyConstant(value):
                op = Constant(value)
        operands = self.read(node.operands)
        regions = tuple([self.region(r) for r in node.regions])
        attrs = _plain(node.attrs)
        made = Node(op, operands, node.types, regions, attrs, node.loc)
        out.append(made)
        self.become(node.results, made.results)

    def become(self, old: tuple[Value, ...], new: tuple[Value, ...]) -> None:
        self.became.update(zip(old, new, strict=True))
