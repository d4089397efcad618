"""A start begins an exchange, work goes on while it is under way, and a done waits for it."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import weft
from tests.partition.differential import cut
from tests.partition.inputs import arguments
from tests.run.collectives import Case, lockstep
from tests.run.processes import Processes
from tests.shard.corpus import annotated
from tests.tolerance import assert_close
from weft.errors import WeftError
from weft.executable.container import open_container
from weft.executable.files import save
from weft.executable.items import Done, Start, all_items
from weft.executable.process import Exchange, Peer, Values
from weft.executable.read import read_tiled
from weft.executable.text import tiled_text
from weft.executable.verify import verify_tiled
from weft.mesh import Axis, Mesh
from weft.pipeline import compile_module, local_program
from weft.run.in_memory import InMemory, Started

pytestmark = pytest.mark.parametrize("target", ["numpy", "llvm"], indirect=True)


class AfterWork(InMemory):
    """Sends in a thread, when work that follows the start has been done."""

    worked = threading.Event()
    streams: ClassVar[list[str | None]] = []

    def start(self, exchange: Exchange) -> Started:
        self.streams.append(exchange.collective.stream)
        begun = super().start(Exchange(exchange.collective, {}, exchange.awaited))
        later = Exchange(exchange.collective, exchange.sent, {})
        threading.Thread(target=self.send, args=(later,)).start()
        return Started(exchange, begun.keys)

    def send(self, exchange: Exchange) -> None:
        if self.worked.wait(20):
            super().start(exchange)


class WhenWaited(InMemory):
    """Sends when it is waited for: what lies in the operands then."""

    def start(self, exchange: Exchange) -> Started:
        begun = super().start(Exchange(exchange.collective, {}, exchange.awaited))
        return Started(exchange, begun.keys)

    def wait(self, started: Started) -> Mapping[Peer, Values]:
        super().start(Exchange(started.exchange.collective, started.exchange.sent, {}))
        return super().wait(started)


@pytest.mark.parametrize("kind", ["all_reduce add", "broadcast", "permute pairs"])
def test_work_runs_while_the_exchange_is_under_way(kind: str):
    """Nothing is sent before one process has done its work: a start that waits would time out."""
    case = Case(kind, Mesh(x=2), (Axis("x"),), (Axis("x"),), "asynchronous")
    module, pieces = case.module(), case.pieces()
    processes = Processes(module, [], 20.0, AfterWork)
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


def test_every_op_is_looked_at_but_for_starts():
    case = Case("all_reduce add", Mesh(x=2), (Axis("x"),), (Axis("x"),), "asynchronous", count=2)
    module, pieces = case.module(), case.pieces()
    processes, seen = Processes(module, []), list[str]()
    works = [
        partial(
            local_program(module, stacked=[], process=processes.process(n)).checked,
            *processes.given(n, pieces),
            watch=lambda node, made: seen.append(node.op.name),
        )
        for n in range(2)
    ]
    processes.boxes.run(works)
    assert seen.count("weft.async_done") == 2 and "stablehlo.all_reduce" not in seen


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


def test_a_saved_program_is_loaded_by_every_process(tmp_path: Path):
    module = annotated("mlp", "2x4", "tensor")
    whole = weft.compile(module, level=2)
    stacked, file = [Axis("data")], tmp_path / "mlp.weft"
    made = compile_module(module, level=2, stacked=stacked, to="tiled").executable
    assert made is not None
    save(file, made, whole.signature, "weft")
    assert open_container(file).features == ("asynchronous",)
    with pytest.raises(WeftError, match="spans several processes"):
        weft.load(file)
    local = whole.program.module
    processes, pieces = Processes(local, stacked), cut(local, arguments(module, 0))
    processes.programs = [
        weft.load(file, process=processes.process(int(program.host.process.device))).program  # type: ignore[union-attr]
        for program in processes.programs
    ]
    for ours, theirs in zip(processes.run(pieces), lockstep(local, pieces), strict=True):
        assert_close(ours, theirs, 1 << 12)
    assert processes.sent
