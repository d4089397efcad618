"""Inlining of calls."""

from __future__ import annotations

from dataclasses import replace

from weft.ir.module import Function, Module, Node, Region, Value, walk
from weft.ir.op import Op
from weft.ir.rebuild import carry_tables
from weft.ops.control import Call

_LIMIT = 200_000  # the most nodes of a module after inlining; other calls stay


def inline_calls(module: Module) -> Module:
    """Replace calls by the bodies of their functions, so that CSE sees equal work across calls."""
    if not any(isinstance(node.op, Call) for node in module.nodes()):
        return module
    inliner = _Inliner(module)
    functions = {name: inliner.function(name) for name in module.functions}
    made = carry_tables(replace(module, functions=functions), inliner.became)
    reached = _reached(made)
    return made.with_functions({n: f for n, f in made.functions.items() if n in reached})


def _reached(module: Module) -> set[str]:
    """The entry functions, and their transitive callees."""
    ahead = [name for name, f in module.functions.items() if f.visibility != "private"]
    names = set(ahead or module.functions)
    for name in ahead:
        for op in dict.fromkeys(node.op for node in walk(module.functions[name].body)):
            for called in _named(op):
                if called in module.functions and called not in names:
                    names.add(called)
                    ahead.append(called)
    return names


def _named(op: Op) -> list[str]:
    """The functions named by an op."""
    names = [getattr(op, "callee", None), getattr(op, "decomposition", None)]
    names += getattr(op, "called_computations", None) or ()
    for row in getattr(op, "programs", None) or ():
        names += row
    names += getattr(op, "infeed", None) or ()
    return [name for name in names if isinstance(name, str)]


def _recursive(module: Module) -> set[str]:
    """The recursive functions."""
    calls = {
        name: [n.op.callee for n in walk(f.body) if isinstance(n.op, Call)]
        for name, f in module.functions.items()
    }
    names: set[str] = set()
    for name in calls:
        ahead, seen = list(calls[name]), set[str]()
        while ahead:
            reached = ahead.pop()
            if reached not in seen:
                seen.add(reached)
                ahead += calls.get(reached, ())
        if name in seen:
            names.add(name)
    return names


class _Inliner:
    """Inlines functions, callees first."""

    def __init__(self, module: Module) -> None:
        self.module = module
        self.done: dict[str, Function] = {}
        self.recursive = _recursive(module)
        self.became: dict[Value, Value] = {}
        self.sizes: dict[str, int] = {}  # sizes in nodes after inlining
        self.size = sum(1 for _ in module.nodes())

    def function(self, name: str) -> Function:
        """A function without calls, except of functions that are too large."""
        if name not in self.done:
            old = self.module.functions[name]
            body = self.region(old.body, self.became, fresh=False)
            self.done[name] = replace(old, body=body)
            self.sizes[name] = sum(1 for _ in walk(body))
        return self.done[name]

    def region(self, region: Region, became: dict[Value, Value], *, fresh: bool) -> Region:
        """A region; with `fresh`, on new arguments."""
        args = region.args
        if fresh:
            args = tuple([Value(v.type, None, v.index) for v in region.args])
            became.update(zip(region.args, args, strict=True))
        nodes: list[Node] = []
        for node in region.nodes:
            self.node(node, became, nodes, fresh=fresh)
        results = tuple([became.get(v, v) for v in region.results])
        if not fresh and results == region.results and nodes == region.nodes:
            return region
        return Region(args, nodes, results, region.loc, region.arg_locs)

    def node(self, node: Node, became: dict[Value, Value], out: list[Node], *, fresh: bool) -> None:
        operands = tuple([became.get(v, v) for v in node.operands])
        callee = self.callee(node)
        if callee is None:
            regions = tuple([self.region(r, became, fresh=fresh) for r in node.regions])
            if not fresh and operands == node.operands and regions == node.regions:
                out.append(node)
                return
            made = node.rebuilt(operands, regions)
            became.update(zip(node.results, made.results, strict=True))
            out.append(made)
            return
        # Copied for every call, since a node has one place.
        inner = dict(zip(callee.body.args, operands, strict=True))
        for each in callee.body.nodes:
            self.node(each, inner, out, fresh=True)
        for value, result in zip(node.results, callee.body.results, strict=True):
            became[value] = inner.get(result, result)

    def callee(self, node: Node) -> Function | None:
        """The function to inline at a call, or None."""
        op = node.op
        if not isinstance(op, Call) or op.callee in self.recursive:
            return None
        if op.callee not in self.module.functions:
            return None
        function = self.function(op.callee)
        # By the size after inlining: calls inside of calls multiply.
        if self.size + self.sizes[op.callee] > _LIMIT:
            return None
        self.size += self.sizes[op.callee]
        return function
