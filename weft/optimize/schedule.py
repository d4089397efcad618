"""Schedule: starts early, dones late, and work of the program's own order in between."""

from __future__ import annotations

from dataclasses import replace

from weft.cost import Costs
from weft.ir.memory import without_gc
from weft.ir.module import Function, Module, Node, Region, Value
from weft.ir.purity import pure_functions
from weft.ir.rebuild import carry_tables
from weft.machine import HOST, Machine
from weft.ops.control import AsyncStart, Call
from weft.optimize.flights import Flights
from weft.optimize.order_region import order_region
from weft.optimize.plan_memory import plan_memory


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


class _Scheduling:
    """One run: what nodes cost, how many bytes may be added, what values have become."""

    def __init__(self, module: Module, costs: Costs, spare: int) -> None:
        self.old = module
        self.costs = costs
        self.pure = pure_functions(module, meetings=True)
        self.spare = spare
        self.became: dict[Value, Value] = {}

    def module(self) -> Module:
        """The module in its new order."""
        functions = {name: self.function(f) for name, f in self.old.functions.items()}
        return carry_tables(self.old.with_functions(functions), self.became)

    def function(self, function: Function) -> Function:
        """The function in its new order; the same one if nothing moves."""
        body = self.region(function.body)
        return function if body is function.body else replace(function, body=body)

    def region(self, region: Region) -> Region:
        """The region in its new order, what is inside its nodes first."""
        became = self.became
        nodes: list[Node] = []
        for node in region.nodes:
            operands = tuple([became.get(v, v) for v in node.operands]) if became else node.operands
            regions = node.regions
            if regions and node.op.control and not isinstance(node.op, AsyncStart):
                regions = tuple([self.region(r) for r in regions])
            if operands != node.operands or regions != node.regions:
                made = node.rebuilt(operands, regions)
                became.update(zip(node.results, made.results, strict=True))
                node = made
            nodes.append(node)
        results = tuple([became.get(v, v) for v in region.results])
        flights = Flights.of(nodes, self.costs)
        if flights is not None:
            nodes = order_region(nodes, flights, self.spare, self.pure)
        if results == region.results and nodes == region.nodes:
            return region
        return Region(region.args, nodes, results, region.loc, region.arg_locs)


def peak(module: Module) -> int:
    """The bytes that a device needs for whichever function the host calls."""
    return max((plan_memory(module, name).peak for name in _called(module)), default=0)


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
