"""A tiled program on a machine: one device stands for all, and loops are simulated twice."""

from __future__ import annotations

import math
from dataclasses import replace

from weft.cost import KINDS, trips
from weft.cost.kernels import Units
from weft.executable.brief import is_brief
from weft.executable.executable import Executable
from weft.executable.items import (
    Block,
    Branch,
    Collective,
    DivergentBranch,
    DivergentLoop,
    Done,
    Host,
    Item,
    Launch,
    Loop,
    Move,
    Slot,
    Start,
)
from weft.executable.launched import launch_name, short_name
from weft.executable.memory import live_ranges_of
from weft.ir.location import Location
from weft.machine import Machine
from weft.simulate.network import Network, Transfer
from weft.simulate.noise import QUIET, Noise
from weft.simulate.seconds import CollectiveCost, ItemSeconds, LaunchCost
from weft.timeline import EventKind, MemoryPoint, Timeline, TimelineEvent

COMPUTE = "compute.0"
COMMUNICATION = "communication.0"


def simulate(
    executable: Executable, machine: Machine, *, noise: Noise = QUIET, units: Units | None = None
) -> Timeline:
    """The predicted timeline of one device in one run of a program on a machine.

    Kernels run in order on the compute stream. An asynchronous collective runs on its stream from
    its start on, and its done waits for it; collectives that use one link at the same time share
    its rate. All devices run the same program, so one is simulated, and `noise` adds what it
    waits for the slowest device of each group. `units` counts the instructions of the target's
    kernels.
    """
    running = _Running(executable, machine, noise, units)
    running.call(executable)
    running.block(executable.tiled.block)
    seconds = running.finish()
    return Timeline(
        executable.tiled.function,
        tuple(sorted(running.events, key=lambda event: event.start)),
        seconds,
        _memory(executable, running.times),
    )


class _Running:
    """The state of a simulation: the clock of the compute stream, and transfers in flight."""

    def __init__(
        self, executable: Executable, machine: Machine, noise: Noise, units: Units | None
    ) -> None:
        self.machine = machine
        self.costs = ItemSeconds(
            executable.tiled, machine, units, _footprint(executable) if units else 0.0
        )
        self.network = Network()
        self.noise = noise.draws()
        self.devices = max((m.size for m in executable.tiled.module.meshes.values()), default=1)
        self.at = 0.0
        self.computed = 0.0  # seconds of computing since the last collective
        self.times = dict[Item, float]()  # when each item first began
        self.events: list[TimelineEvent] = []
        self.flights: dict[Slot, tuple[Transfer, int]] = {}  # by handle, with its event's number
        self.repeats = 1  # the iterations of enclosing loops that this one stands for
        self.queued = True  # whether the next kernel runs in the native call of the one before

    def call(self, executable: Executable) -> None:
        """The call of a program in this process: its arguments and results."""
        main, on = executable.tiled.module.function(executable.tiled.function), self.machine
        brief = not on.overheads or is_brief(executable.tiled.block, executable.memory().peak)
        # Files of earlier versions have one number for both.
        kind = "queued_" if not brief and on.overhead("queued_argument") else ""
        seconds = on.overhead("call") + len(main.arg_types) * on.overhead(f"{kind}argument")
        seconds += len(main.result_types) * on.overhead(f"{kind}result")
        seconds += 0.0 if brief else on.overhead("queue")
        self.compute("call", LaunchCost(seconds, "memory"), main.loc)

    def native_call(self, loc: Location) -> None:
        """The native call of adjacent kernels, unless the kernel before is in it as well."""
        if not self.queued:
            self.step(self.machine.overhead("segment"), loc)
            self.queued = True

    def host_step(self, item: Host) -> None:
        """Seconds of the interpreter for an op that runs between native calls of kernels."""
        self.queued = False
        self.step(len(item.ins) * self.operand_seconds(item), item.loc)

    def operand_seconds(self, item: Host) -> float:
        """Seconds of the interpreter for each operand of a host step."""
        kind = "view" if item.traits.shares else "operand"
        if KINDS.get(type(item.node.op)) in ("reduce", "scatter"):
            kind = "summand"
        # Files of earlier versions have one number for all.
        return self.machine.overhead(kind) or self.machine.overhead("operand")

    def step(self, seconds: float, loc: Location) -> None:
        """A step of the interpreter."""
        self.compute("host step", LaunchCost(seconds, "memory"), loc)

    def block(self, block: Block) -> None:
        """Run the items of a block."""
        for item in block.items:
            self.times.setdefault(item, self.at)
            self.item(item)

    def item(self, item: Item) -> None:
        """Run one item."""
        match item:
            case Launch():
                self.native_call(item.loc)
                self.compute(launch_name(item), self.costs.launch(item), item.loc)
            case Start():
                self.start(item, item.stream or COMMUNICATION)
            case Collective():
                self.host_step(item)
                transfer, number = self.send(item, COMMUNICATION)
                self.wait(transfer, number)
            case Host():
                self.host_step(item)
                cost = LaunchCost(self.costs.host(item), "memory")
                self.compute(short_name(item.node.op.name), cost, item.loc)
            case Done():
                flight = self.flights.pop(item.ins[0], None)
                if flight is not None:
                    self.wait(*flight)
            case Loop() | DivergentLoop():
                self.loop(item)
            case Branch() | DivergentBranch():
                self.branch(item)
            case Move():
                pass

    def compute(self, name: str, cost: LaunchCost, loc: Location) -> None:
        """Occupy the compute stream."""
        if cost.seconds:
            self.note(name, cost.kind, self.at, cost.seconds, loc, cost)
            self.at += cost.seconds
            self.computed += cost.seconds

    def start(self, item: Start, stream: str) -> None:
        """Start a collective beside the compute stream."""
        self.flights[item.outs[0]] = self.send(item, stream)

    def send(self, item: Collective, stream: str) -> tuple[Transfer, int]:
        """Queue a collective; it begins when the last device of its group arrives."""
        cost = self.costs.collective(item)
        late = self.noise.delay(self.computed, cost.devices)
        self.computed = 0.0
        transfer = Transfer(stream, cost.link, self.at + late, cost.seconds)
        self.network.add(transfer)
        number = len(self.events)
        self.events.append(_sent_event(item, stream, cost, self.at, self.repeats))
        return transfer, number

    def wait(self, transfer: Transfer, number: int) -> None:
        """Wait for a transfer, and complete its event."""
        end = self.network.wait(transfer)
        exposed = max(0.0, end - self.at)
        sent = self.events[number]
        if exposed:
            self.note(f"wait for {sent.name}", "wait", self.at, exposed, sent.loc)
        self.events[number] = replace(
            sent, start=transfer.begin, duration=end - transfer.begin, exposed=exposed
        )
        self.at += exposed

    def loop(self, item: Loop | DivergentLoop) -> None:
        """Run a loop: its first iteration, and a second one that stands for all others."""
        self.queued = False
        count = rounds_of(item)
        if count == 0:
            self.block(item.test)
            return
        # The first iteration may wait for transfers that began before the loop; the second one is
        # the steady state, and all later ones are its repetitions.
        self.round(item)
        if count > 1:
            begun, outer = self.at, self.repeats
            self.repeats = outer * (count - 1)
            self.round(item)
            self.repeats = outer
            self.skip(item, (count - 2) * (self.at - begun), count - 2)
        self.block(item.test)  # the test that fails

    def round(self, item: Loop | DivergentLoop) -> None:
        """Run one iteration of a loop."""
        self.block(item.test)
        self.block(item.body)

    def skip(self, item: Item, seconds: float, rounds: int) -> None:
        """Advance by the iterations of a loop that are not simulated one by one."""
        if rounds > 0 and seconds:
            self.note(f"{rounds:,} more rounds", "loop", self.at, seconds, item.loc)
            self.at += seconds
            # Transfers of the skipped iterations are over by then.
            self.network.now = max(self.network.now, self.at)

    def branch(self, item: Branch | DivergentBranch) -> None:
        """Run the slowest block of a branch; a divergent one runs every block."""
        self.queued = False
        if isinstance(item, DivergentBranch):
            for block in item.blocks:
                self.block(block)
            return
        # Which block runs is known at run time only: the prediction is an upper bound.
        slowest = max(item.blocks, key=self.rough)
        self.block(slowest)

    def rough(self, block: Block) -> float:
        """The seconds of a block's items one after another."""
        total = 0.0
        for item in block.items:
            match item:
                case Launch():
                    total += self.costs.launch(item).seconds
                case Collective():
                    total += self.costs.collective(item).seconds
                case Host():
                    total += self.costs.host(item)
                case Loop() | DivergentLoop():
                    total += rounds_of(item) * (self.rough(item.test) + self.rough(item.body))
                case Branch():
                    total += max(map(self.rough, item.blocks))
                case DivergentBranch():
                    total += sum(map(self.rough, item.blocks))
        return total

    def note(
        self,
        name: str,
        kind: EventKind,
        start: float,
        seconds: float,
        loc: Location,
        cost: LaunchCost | None = None,
    ) -> None:
        """Record an event of the compute stream."""
        flops, ideal = (cost.flops, cost.ideal) if cost is not None else (0.0, 0.0)
        event = TimelineEvent(
            name, kind, COMPUTE, start, seconds, loc, self.repeats, flops=flops, ideal=ideal
        )
        self.events.append(event)

    def finish(self) -> float:
        """The end of the step: of the compute stream, of transfers, and on the slowest device."""
        late = self.noise.delay(self.computed, self.devices)
        return max(self.at + late, self.network.drain())


def rounds_of(loop: Loop | DivergentLoop) -> int:
    """The rounds of a loop; one where their number is unknown."""
    count = trips(loop.node) if loop.node is not None else None
    return 1 if count is None else count


def _footprint(executable: Executable) -> float:
    """The bytes of all devices that share this process's memory, from step to step."""
    dims = executable.tiled.stack_dims
    return executable.memory().peak * math.prod(dims.shape(dims.everything))


def _sent_event(
    item: Collective, stream: str, cost: CollectiveCost, at: float, times: int
) -> TimelineEvent:
    return TimelineEvent(
        short_name(item.node.op.name), "collective", f"{stream} ({cost.link})", at, cost.seconds,
        item.loc, times, 0.0, cost.bytes, cost.over, cost.source,
    )  # fmt: skip


def _memory(executable: Executable, times: dict[Item, float]) -> tuple[MemoryPoint, ...]:
    """The bytes of a device over time, where they change."""
    use = executable.memory()
    lives = live_ranges_of(executable.tiled, executable.plan)
    changes: dict[int, int] = {}
    for buffer in use.buffers:
        changes[buffer.begin] = changes.get(buffer.begin, 0) + buffer.size
        # Freed after its last position: operands and results of an item are live together.
        changes[buffer.end + 1] = changes.get(buffer.end + 1, 0) - buffer.size
    begins = {start: times.get(item, 0.0) for item, start, _ in lives.items}
    points: list[MemoryPoint] = []
    held, now, rises = 0, 0.0, True
    for position in sorted(changes):
        if position > lives.clock:  # arguments and results outlive the program
            break
        now = max(now, begins.get(position, now))
        held += changes[position]
        # Changes of one moment in one direction are one point; a fall and a rise stay two.
        if points and points[-1].seconds == now and rises == (changes[position] > 0):
            points.pop()
        points.append(MemoryPoint(now, held))
        rises = changes[position] > 0
    return tuple(points)
