"""Latency hiding: starts early, dones late, and the program's own order in between."""

from __future__ import annotations

from weft.cost import Costs
from weft.ir.gc_pause import without_gc
from weft.ir.module import Module, Region
from weft.ir.purity import pure_functions
from weft.ir.rebuild import Rebuild
from weft.machine import HOST, Machine
from weft.ops.control import AsyncStart, Call
from weft.optimize.scheduling.flights import Flights
from weft.optimize.scheduling.lifetimes import live_bytes
from weft.optimize.scheduling.order_region import order_region


def schedule(module: Module, machine: Machine = HOST) -> Module:
    """Reorder the nodes of every region so that communication overlaps with computation.

    The program's order is kept with three exceptions: a start moves up until its transfer is hidden
    behind the work before its first use, a done moves down to that use, and a remaining wait is
    filled with later work that is ready. No move exceeds the machine's memory; effects keep their
    order.
    """
    if not any(isinstance(node.op, AsyncStart) for node in module.nodes()):
        return module
    with without_gc():
        costs = Costs(module, machine)
        before = peak(module)
        # Each nesting level may hold its own values ahead, all at the same time.
        spare = max(0, machine.memory - before) // depth(module)
        while True:
            made = _Scheduling(module, costs, spare).module()
            # A new order may also lose memory reuse, which only the final estimate shows.
            if spare == 0 or 2 * before <= machine.memory or peak(made) <= machine.memory:
                return made
            # A few tries at most: from all spare memory down to none.
            spare = spare // 8 if spare > before // 8 else 0


class _Scheduling(Rebuild):
    """One rebuild: the costs of nodes, and the spare bytes."""

    def __init__(self, module: Module, costs: Costs, spare: int) -> None:
        super().__init__(module, ())
        self.costs = costs
        self.pure = pure_functions(module, collectives=True)
        self.spare = spare

    def region(self, region: Region) -> Region:
        """The region in its new order, inner regions first."""
        inner = super().region(region)
        flights = Flights.of(inner.nodes, self.costs)
        if flights is None:
            return inner
        # Inner regions are done by now: a loop is one node here.
        nodes = order_region(inner.nodes, flights, self.spare, self.pure)
        if nodes == inner.nodes:
            return inner
        return Region(inner.args, nodes, inner.results, inner.loc, inner.arg_locs)


def peak(module: Module) -> int:
    """An estimate of a device's peak memory, over all entry functions."""
    return max((live_bytes(module, name) for name in entry_functions(module)), default=0)


def depth(module: Module) -> int:
    """The maximal nesting depth of regions."""
    return max(
        (_depth(module, module.functions[n].body) for n in entry_functions(module)), default=1
    )


def entry_functions(module: Module) -> list[str]:
    """The functions that may be called from outside."""
    return [name for name, f in module.functions.items() if f.visibility != "private"]


def _depth(module: Module, region: Region) -> int:
    """The nesting depth of a region, through calls."""
    deepest = 0
    for node in region.nodes:
        if isinstance(node.op, Call) and node.op.callee in module.functions:
            deepest = max(deepest, _depth(module, module.functions[node.op.callee].body))
        elif node.regions and node.op.control and not isinstance(node.op, AsyncStart):
            deepest = max(deepest, *[_depth(module, inner) for inner in node.regions])
    return deepest + 1
