"""Processes as threads: what they send to one another lies on a board that all of them see."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from weft.errors import WeftError
from weft.executable.process import Group, Member, Values
from weft.ir.module import Node


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
