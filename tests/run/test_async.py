"""A start begins an exchange, work goes on while it is under way, and a done waits for it."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import pytest

from tests.run.collectives import Case, lockstep
from tests.run.processes import Processes
from weft.errors import WeftError
from weft.executable.items import Done, Start, all_items
from weft.executable.process import Exchange, Peer, Values
from weft.executable.read import read_tiled
from weft.executable.text import tiled_text
from weft.executable.verify import verify_tiled
from weft.mesh import Axis, Mesh
from weft.run.in_memory import InMemory, Started

pytestmark = pytest.mark.parametrize("target", ["numpy", "llvm"], indirect=True)


class AfterWork(InMemory):
    """Sends in a thread, when work that follows the start has been done."""

    worked = threading.Event()
    streams: ClassVar[list[str | None]] = []

    def start(self, exchange: Exchange) -> Started:
        self.streams.append(exchange.meeting.stream)
        begun = super().start(Exchange(exchange.meeting, {}, exchange.awaited))
        later = Exchange(exchange.meeting, exchange.sent, {})
        threading.Thread(target=self.send, args=(later,)).start()
        return Started(exchange, begun.keys)

    def send(self, exchange: Exchange) -> None:
        if self.worked.wait(5):
            super().start(exchange)


class WhenWaited(InMemory):
    """Sends when it is waited for: what lies in the operands then."""

    def start(self, exchange: Exchange) -> Started:
        begun = super().start(Exchange(exchange.meeting, {}, exchange.awaited))
        return Started(exchange, begun.keys)

    def wait(self, started: Started) -> Mapping[Peer, Values]:
        super().start(Exchange(started.exchange.meeting, started.exchange.sent, {}))
        return super().wait(started)


@pytest.mark.parametrize("kind", ["all_reduce add", "broadcast", "permute pairs"])
def test_work_runs_while_the_exchange_is_under_way(kind: str):
    """Nothing is sent before one process has done its work: a start that waits would time out."""
    case = Case(kind, Mesh(x=2), (Axis("x"),), (Axis("x"),), "asynchronous")
    module, pieces = case.module(), case.pieces()
    processes = Processes(module, [], 2.0, AfterWork)
    AfterWork.worked.clear()
    AfterWork.streams.clear()
    code = processes.programs[1].code
    (start,) = [n for n, unit in enumerate(code.units) if isinstance(unit, Start)]
    assert not isinstance(code.units[start + 1], Done), "there is work between"
    work = code.steps[start + 1]

    def observed(slots: Any) -> None:
        work(slots)
        AfterWork.worked.set()

    code.steps[start + 1] = observed
    for ours, theirs in zip(processes.run(pieces), lockstep(module, pieces), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert AfterWork.streams == ["communication.0"] * 2


def test_what_is_sent_stays_until_it_has_arrived():
    """What would be written over the operand of a start takes other memory."""
    case = Case("all_reduce add", Mesh(x=2), (Axis("x"),), (Axis("x"),), "asynchronous", "f32")
    module = case.module()
    made = Processes(module, [], transport=WhenWaited)
    items = [*all_items(made.first.tiled.block)]
    (start,), (done,) = ([i for i in items if isinstance(i, kind)] for kind in (Start, Done))
    assert done.ins == (*start.outs, *start.ins) and start.stream == "communication.0"
    for ours, theirs in zip(made.run(case.pieces()), lockstep(module, case.pieces()), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_the_text_of_starts_and_dones():
    case = Case("all_gather", Mesh(x=2), (Axis("x"),), (Axis("x"),), "asynchronous")
    made = Processes(case.module(), []).first
    text = tiled_text(made.tiled, made.plan)
    assert 'start {weft.stream = "communication.0"} (b4) -> b5: <' in text.text
    assert "done (b5, b4) -> " in text.text
    again = read_tiled(text.text, text.resources)
    verify_tiled(*again)
    assert tiled_text(*again).text == text.text
    for wrong in ("done (b4, b4)", "done (b5)", "done (b5, b2)", "done ()"):
        with pytest.raises(WeftError):
            verify_tiled(*read_tiled(text.text.replace("done (b5, b4)", wrong), {}))
