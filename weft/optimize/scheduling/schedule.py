"""Schedule: starts early, dones late, and work of the program's own order in between."""

from __future__ import annotations

from weft.cost import Costs
from weft.ir.memory import without_gc
from weft.ir.module import Module, Region
from weft.ir.purity import pure_functions
from weft.ir.rebuild import Rebuild
from weft.machine import HOST, Machine
from weft.ops.control import AsyncStart, Call
from weft.optimize.scheduling.flights import Flights
from weft.optimize.scheduling.lifetimes import live_bytes
from weft.optimize.scheduling.order_region import order_region


def schedule(module: Module, machine: Machine = HOST) -> Module:
    """Reorder the nodes of every region so that what travels overlaps with what is computed.

    The order of the program is kept but for three things: a start moves up until its travel is
    hidden behind the work before its first use, a done moves down to that use, and where a value
    would still be waited for, later work that is ready fills the time. Nothing moves that would
    need more memory than the machine has; effects stay in order.
    """
    if not any(isinstance(node.op, AsyncStart) for node in module.nodes()):
        return module
    with without_gc():
        costs = Costs(module, machine)
        before = peak(module)
        spare = max(0, machine.memory - before) // depth(module)
        while True:
            made = _Scheduling(module, costs, spare).module()
            # A new order may also lose places that were shared; that is seen only in the end.
            if spare == 0 or 2 * before <= machine.memory or peak(made) <= machine.memory:
                return made
            spare = spare // 8 if spare > before // 8 else 0


class _Scheduling(Rebuild):
    """One rebuild: what nodes cost, and how many bytes may be added."""

    def __init__(self, module: Module, costs: Costs, spare: int) -> None:
        super().__init__(module, ())
        self.costs = costs
        self.pure = pure_functions(module, collectives=True)
        self.spare = spare

    def region(self, region: Region) -> Region:
        """The region in its new order, what is inside its nodes first."""
        made = super().region(region)
        flights = Flights.of(made.nodes, self.costs)
        if flights is None:
            return made
        nodes = order_region(made.nodes, flights, self.spare, self.pure)
        if nodes == made.nodes:
            return made
        return Region(made.args, nodes, made.results, made.loc, made.arg_locs)


def peak(module: Module) -> int:
    """An estimate of the bytes that a device needs for whichever function the host calls."""
    return max((live_bytes(module, name) for name in _called(module)), default=0)


def depth(module: Module) -> int:
    """How many regions run inside each other at most."""
    return max((_depth(module, module.functions[n].body) for n in _called(module)), default=1)


def _called(module: Module) -> list[str]:
    return [name for name, f in module.functions.items() if f.visibility != "private"]


def _depth(module: Module, region: Region) -> int:
    """How many regions run inside each other, functions that are called included."""
    deepest = 0
    for node in region.nodes:
        if isinstance(node.op, Call) and node.op.callee in module.functions:
            deepest = max(deepest, _depth(module, module.functions[node.op.callee].body))
        elif node.regions and node.op.control and not isinstance(node.op, AsyncStart):
            deepest = max(deepest, *[_depth(module, inner) for inner in node.regions])
    return deepest + 1
