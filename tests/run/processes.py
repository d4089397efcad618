"""Processes as threads: what they send to one another lies on a board that all of them see.

Every process runs the same executable, and is told by its `Process` alone which devices it has.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from weft.array.stacked import Stacked, stack
from weft.emit.numpy import Numpy
from weft.errors import WeftError
from weft.executable.process import Group, Member, Process, Values
from weft.executable.read import read_tiled
from weft.executable.text import tiled_text
from weft.executable.verify import verify_tiled
from weft.ir.module import Module, Node
from weft.ir.types import Array
from weft.mesh import Axis
from weft.pipeline import local_program
from weft.run import LocalProgram


@dataclass
class Board:
    """What was sent, by group, by how often the group had met before, and by device."""

    timeout: float = 30.0
    posted: dict[tuple[Group, int, int], tuple[Node, Values]] = field(default_factory=dict)
    changed: threading.Condition = field(default_factory=threading.Condition)
    failed: BaseException | None = None

    def run(self, works: Sequence[Callable[[], Any]]) -> list[Any]:
        """What every process gives; the first error, if one has one."""

        def watched(work: Callable[[], Any]) -> Any:
            try:
                return work()
            except BaseException as error:
                with self.changed:
                    self.failed = self.failed or error
                    self.changed.notify_all()
                raise

        with ThreadPoolExecutor(len(works)) as pool:
            waiting = [pool.submit(watched, work) for work in works]
        if self.failed is not None:
            raise self.failed
        return [made.result() for made in waiting]


@dataclass
class InMemory:
    """The transport of one process."""

    board: Board
    met: Counter[Group] = field(default_factory=Counter)  # how often, in this process
    sent: int = 0  # arrays of devices

    def exchange(
        self, node: Node, sent: Sequence[tuple[Member, Values]], awaited: Sequence[Member]
    ) -> list[Values]:
        """Send what devices of this process bring to groups, and wait for what others do."""
        board = self.board
        rounds = {group: self.met[group] for (group, _), _ in sent}
        rounds |= {group: self.met[group] for group, _ in awaited}
        self.met.update([*rounds])
        self.sent += sum(len(values) for _, values in sent)
        keys = [(group, rounds[group], device) for group, device in awaited]
        with board.changed:
            for (group, device), values in sent:
                copies = tuple([value.copy() for value in values])
                board.posted[group, rounds[group], device] = node, copies
            board.changed.notify_all()

            def ready() -> bool:
                return board.failed is not None or all(key in board.posted for key in keys)

            there = board.changed.wait_for(ready, board.timeout)
            if board.failed is not None:
                raise WeftError("another process has failed", help="see its error")
            if not there:
                raise _missing(node, [key[2] for key in keys if key not in board.posted])
            found = [board.posted[key] for key in keys]
        for key, (other, _) in zip(keys, found, strict=True):
            if other.op != node.op:
                raise WeftError(
                    f"device {key[2]} is in {other.op.name} where others of its group are in "
                    f"{node.op.name}",
                    help="every device of a group must reach the same collectives",
                    loc=node.loc,
                )
        return [values for _, values in found]


def _missing(node: Node, devices: list[int]) -> WeftError:
    return WeftError(
        f"{node.op.name}: devices {devices} never came",
        help="every device of a group must reach the same collective",
        loc=node.loc,
    )


class Processes:
    """A program on as many processes as its devices need."""

    def __init__(self, module: Module, stacked: Sequence[Axis], timeout: float = 30.0) -> None:
        self.board, self.transports = Board(timeout), list[InMemory]()
        self.first = local_program(module, stacked=stacked, process=self.process(0))
        text = tiled_text(self.first.tiled, self.first.plan)
        self.read = read_tiled(text.text, text.resources)  # as it would be sent to the others
        verify_tiled(*self.read)
        world, absent = self.first.world, self.first.layout.absent
        which = world.atoms.index(absent, np.arange(world.count))
        self.places = [np.flatnonzero(which == n) for n in range(which.max() + 1)]
        self.programs = [self.loaded(int(world.devices()[p[0]])) for p in self.places]

    @property
    def sent(self) -> int:
        """How many arrays of devices were sent."""
        return sum(transport.sent for transport in self.transports)

    def process(self, device: int) -> Process:
        self.transports.append(InMemory(self.board))
        return Process(device, self.transports[-1])

    def loaded(self, device: int) -> LocalProgram:
        """The same executable in another process."""
        return LocalProgram(*self.read, Numpy(self.process(device)), self.first.target)

    def given(self, number: int, pieces: Sequence[Array]) -> list[Stacked]:
        """What one process has of the arguments, which are in the order of the mesh."""
        program, at = self.programs[number], self.places[number][0]
        atoms, layout, found = program.atoms, program.layout, []
        for n, array in enumerate(pieces):
            data = stack(np.asarray(array), atoms).data
            window: list[slice] = []
            for d, size in enumerate(layout.shape(program.masks[n])):  # type: ignore[arg-type]
                here = int(at) // atoms.strides[d] % atoms.sizes[d] if d in layout.absent else 0
                window.append(slice(here, here + size))
            found.append(Stacked(data[tuple(window)], atoms))
        return found

    def run(self, pieces: Sequence[Array]) -> list[Array]:
        """Every device's results, in the order of the mesh."""
        works = [
            partial(program, *self.given(number, pieces))
            for number, program in enumerate(self.programs)
        ]
        made = self.board.run(works)
        results = []
        for n in range(len(made[0])):
            rows = {
                int(place): made[number][n].piece(int(place))
                for number, places in enumerate(self.places)
                for place in places
            }
            results.append(np.stack([rows[place] for place in sorted(rows)]))
        return results
