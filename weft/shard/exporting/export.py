"""The exporter: from the propagated graph to a module with a sharding for every value."""

from __future__ import annotations

from dataclasses import replace

from weft.ir.attrs import Attrs
from weft.ir.gc_pause import without_gc
from weft.ir.module import Function, Module, Node, Region, Value
from weft.ir.names import SHARDING
from weft.ir.write import SHARDINGS
from weft.mesh import Sharding
from weft.shard.closing import GivenShardings, closed
from weft.shard.drop_dead import drop_dead
from weft.shard.exporting.body import ExportState, Rebuilder, unsharded
from weft.shard.exporting.calls import FlatCall, plan_calls
from weft.shard.exporting.signature import (
    IndivisibleDim,
    Pads,
    SignatureValue,
    argument_values,
    result_values,
)
from weft.shard.exporting.unreduced_body import UnreducedRebuilder
from weft.shard.propagation.graph import Graph, Instance


def export(
    module: Module,
    graph: Graph,
    shardings: list[Sharding | None],
    *,
    pads: Pads = "none",
    notes: list[IndivisibleDim] | None = None,
) -> Module:
    """The module in Shardy's exported form, with shardings in the side table (of results: in text).

    Unless `pads` is "none", arguments and results keep their annotated or all inferred axes, and
    calls their propagated ones, even if uneven; dropped axes are appended to `notes`.
    """
    with without_gc():
        exporter = _Exporter(module, graph, shardings, pads)
        made = exporter.module()
    if notes is not None:
        notes.extend(exporter.notes)
    return made


class _Exporter:
    """Builds the functions of the module, roots first."""

    def __init__(
        self, module: Module, graph: Graph, shardings: list[Sharding | None], pads: Pads
    ) -> None:
        self.old = module
        self.roots = graph.roots[::-1]  # in Shardy's order, the first function last
        self.initial = graph.initial
        self.pads = pads
        self.notes: list[IndivisibleDim] = []
        graph = replace(graph, roots=self.roots)
        names = [*[r.function.name for r in self.roots], *module.meshes]
        plan = plan_calls(graph, shardings, names)
        known = {id(s): s for s in shardings}  # few; identity is fast to compare
        first: dict[Sharding | None, Sharding | None] = {}
        same = {key: id(first.setdefault(s, s)) for key, s in known.items()}
        ends = {key: None if s is None else closed(s) for key, s in known.items()}
        closings = [ends[id(s)] for s in shardings]
        self.state = ExportState(
            module.meshes, plan, shardings, closings, same, pad_calls=pads != "none"
        )
        self.state.may_be_dead = graph.unread
        unreduced = any(s is not None and s.unreduced for s in first)
        self.body: type[Rebuilder] = UnreducedRebuilder if unreduced else Rebuilder
        main = module.functions.get("main")
        self.main = main or (self.roots[0].function if len(self.roots) == 1 else None)

    def module(self) -> Module:
        """The whole module."""
        state, plan = self.state, self.state.plan
        for site in plan.functions:
            state.arguments[site] = self.ends(site.args, site.body.args)
        functions: dict[str, Function] = {}
        for instance, sites in zip(self.roots, plan.roots, strict=True):
            functions[instance.function.name] = self.root(instance, sites)
        for site in plan.functions:
            functions[site.name] = self.called(site)
        tables = {**self.old.tables, SHARDINGS: state.table}
        made = replace(self.old, functions=functions, tables=tables)
        return drop_dead(made) if state.may_be_dead else made

    def ends(self, given: GivenShardings, values: tuple[Value, ...]) -> list[Sharding | None]:
        """The shardings of a called function's arguments or results."""
        pairs = zip(given, values, strict=True)
        return [None if s is None else self.state.passed(s, v.type) for s, v in pairs]

    def signature(
        self, signature: list[SignatureValue], reached: GivenShardings, *, whole: bool
    ) -> list[Sharding | None]:
        """The shardings of the program's arguments or results: closed, and even if inferred."""
        listed: list[Sharding | None] = []
        for one, sharding in zip(signature, reached, strict=True):
            if sharding is None:
                listed.append(None)
                continue
            final = self.state.divided(sharding, one.value.type, whole=whole)
            if self.pads == "named":
                final = one.named_at_least(final, sharding)
            elif self.pads == "inferred":
                final = closed(sharding)
            listed.append(final)
            self.notes += one.shrunk(sharding, final, self.state.mesh(sharding))
        return listed

    def root(self, instance: Instance, sites: dict[Node, FlatCall]) -> Function:
        """A function without callers."""
        function = instance.function
        raw, cells = self.state.raw, instance.cells
        is_main = function is self.main
        args: GivenShardings = [raw[cells[v]] for v in function.body.args]
        # Only main's result attributes took part in propagation.
        if is_main:
            results: GivenShardings = [raw[cell] for cell in instance.result_cells]
        else:
            results = [raw[cells[v]] for v in function.body.results]
        outs = self.signature(result_values(instance, self.initial), results, whole=is_main)
        ends = self.signature(argument_values(instance, self.initial), args, whole=is_main)
        body = self.built(instance, sites, function.body, ends, outs)
        return replace(
            function,
            body=body,
            arg_attrs=tuple([unsharded(a) for a in function.arg_attrs]),
            res_attrs=_sharded(function.res_attrs, outs),
        )

    def called(self, site: FlatCall) -> Function:
        """A called function."""
        given = self.ends(site.results, site.body.results)
        args = self.state.arguments[site]
        body = self.built(site.instance, site.inner, site.body, args, given)
        attrs = _sharded((), given)
        return Function(site.name, body, "private", (), attrs, site.attrs, site.loc)

    def built(
        self,
        instance: Instance,
        sites: dict[Node, FlatCall],
        body: Region,
        args: list[Sharding | None],
        results: list[Sharding | None],
    ) -> Region:
        builder = self.body(self.state, instance.cells, sites)
        made = builder.region(body, args)
        builder.finish(made, results)
        return made


def _sharded(attrs: tuple[Attrs, ...], shardings: list[Sharding | None]) -> tuple[Attrs, ...]:
    """The attributes of results, with their shardings."""
    old = attrs or ((),) * len(shardings)
    new = [
        tuple(sorted((*unsharded(a), *([(SHARDING, str(s))] if s is not None else []))))
        for a, s in zip(old, shardings, strict=True)
    ]
    return tuple(new) if any(new) else ()
