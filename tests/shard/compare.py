"""Weft's propagation beside Shardy's: a program's shardings, listed as the oracle lists them."""

from __future__ import annotations

from collections.abc import Iterable

from tests.shard.oracle import Listed, Shardings, propagated
from weft.capture import parse
from weft.ir.module import Node, Region, Value
from weft.mesh import Sharding
from weft.ops.control import Call, Case, OptimizationBarrier, While
from weft.ops.distributed.sharding import ManualComputation, NamedComputation, ShardingGroup
from weft.ops.shape import Constant
from weft.shard import Propagated, PropagationLevel, propagate
from weft.shard.propagation.graph import Instance


def listed(done: Propagated) -> tuple[Listed, ...]:
    """What propagation has made of a module, calls followed as if inlined."""
    return tuple(_Listing(done).function(instance) for instance in reversed(done.graph.roots))


class _Listing:
    def __init__(self, done: Propagated) -> None:
        self.done = done
        self.ops: list[tuple[str, Shardings]] = []
        self.edges: list[str | None] = []

    def function(self, instance: Instance) -> Listed:
        self.region(instance, instance.function.body)
        args = self.shown(instance.cells[v] for v in instance.function.body.args)
        results = self.shown(instance.result_cells)
        name = instance.function.name
        return Listed(name, args, results, tuple(self.ops), tuple(self.edges))

    def shown(self, cells: Iterable[int]) -> Shardings:
        return tuple(_body(self.done.shardings[cell]) for cell in cells)

    def held(self, instance: Instance, values: Iterable[Value]) -> Shardings:
        cells = instance.cells
        found = self.done.shardings
        return tuple(_body(found[cells[v]]) if v in cells else None for v in values)

    def region(self, instance: Instance, region: Region) -> None:
        for node in region.nodes:
            self.node(instance, node)

    def node(self, instance: Instance, node: Node) -> None:
        match node.op:
            case ShardingGroup():
                return
            case Call():
                self.ops.append(("sdy.named_computation", ()))
                inner = instance.calls[node]
                self.carry(inner, inner.function.body.args)
                self.region(inner, inner.function.body)
            case NamedComputation() | ManualComputation():
                self.ops.append((node.op.name, ()))
                self.carry(instance, node.regions[0].args)
                self.region(instance, node.regions[0])
            case While() | Case() | OptimizationBarrier():
                self.ops.append((node.op.name, ()))
                for region in node.regions:
                    self.region(instance, region)
            case _:
                # A constant that needs no copies becomes Shardy's own in the export only.
                name = "sdy.constant" if isinstance(node.op, Constant) else node.op.name
                self.ops.append((name, self.held(instance, node.results)))
                for region in node.regions:
                    self.region(instance, region)
                return
        self.carry(instance, node.results)

    def carry(self, instance: Instance, values: Iterable[Value]) -> None:
        self.edges.extend(self.held(instance, [v for v in values if str(v.type)[:6] == "tensor"]))


def _body(sharding: Sharding | None) -> str | None:
    return None if sharding is None else sharding.body()


def differences(program: str | bytes, level: PropagationLevel = "user") -> list[str]:
    """Where Weft's propagation differs from Shardy's, in words; nothing if it does not."""
    theirs = propagated(program, level, final=False)
    if theirs.error is not None:
        return [f"the oracle refuses: {theirs.error}"]
    ours = propagate(parse(program), level)
    return list(compared(theirs.propagated, listed(ours)))


def compared(theirs: tuple[Listed, ...], ours: tuple[Listed, ...]) -> Iterable[str]:
    """Every difference between the oracle's answer and ours."""
    if [f.name for f in theirs] != [f.name for f in ours]:
        yield f"functions: {[f.name for f in ours]}, not {[f.name for f in theirs]}"
        return
    for right, left in zip(theirs, ours, strict=True):
        yield from _both(f"{left.name} arguments", right.args, left.args)
        yield from _both(f"{left.name} results", right.results, left.results)
        names = [name for name, _ in right.ops], [name for name, _ in left.ops]
        if names[0] != names[1]:
            at = next(
                (n for n, (a, b) in enumerate(zip(*names, strict=False)) if a != b),
                min(map(len, names)),
            )
            yield f"{left.name} op {at}: {names[1][at : at + 4]}, not {names[0][at : at + 4]}"
            continue
        for n, ((name, a), (_, b)) in enumerate(zip(right.ops, left.ops, strict=True)):
            yield from _both(f"{left.name} op {n} {name}", a, b)
        yield from _both(f"{left.name} edges", right.edges, left.edges)


def _both(place: str, right: Shardings, left: Shardings) -> Iterable[str]:
    if right != left:
        if len(right) != len(left):
            yield f"{place}: {len(left)} values, not {len(right)}"
            return
        for n, (a, b) in enumerate(zip(right, left, strict=True)):
            if a != b:
                yield f"{place} {n}: {b}, not {a}"
