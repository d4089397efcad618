"""Exchanges by native code, as machine code and as Python, on rings in one process."""

from __future__ import annotations

import ctypes
from mmap import mmap

import numpy as np
import pytest

from weft.emit.llvm.jit.engine import NativeLibrary
from weft.emit.llvm.jit.processor import host
from weft.native.memory import Pointer, address
from weft.native.short_run import LATE, UNFINISHED, ShortRun
from weft.workers import shared
from weft.workers.native_sums import (
    EXCHANGE,
    FINISH,
    LEAST_WAIT,
    MOST_WAIT,
    ExchangeOperands,
    ExchangePlan,
    ExchangeSite,
    ExchangeState,
    FinishOperands,
    NativeRun,
    PendingRuns,
    exchange,
    exchange_text,
    finish,
)
from weft.workers.rings import RING_BYTES, MessageRing

pytestmark = pytest.mark.skipif(not shared.CAN_SHARE, reason="Linux on x86-64")
HEADER, COUNT = bytes(range(128)), 3


def model(operands: int) -> None:
    exchange(ExchangeOperands(operands), Pointer(0), 0, 1)


def model_finish(operands: int) -> None:
    finish(FinishOperands(operands), Pointer(0), 0, 1)


@pytest.fixture(params=["python", "machine code"])
def functions(request):
    if request.param == "python":
        return model, model_finish
    library = NativeLibrary(exchange_text(host().triple), [EXCHANGE, FINISH])
    kind = ctypes.CFUNCTYPE(None, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int64, ctypes.c_int64)
    made = [kind(library.addresses[name]) for name in (EXCHANGE, FINISH)]
    run, end = [lambda operands, call=call, keep=library: call(operands, 0, 0, 1) for call in made]
    return run, end


class OneWorker:
    """A worker whose program has one exchange, with a peer that the test plays."""

    def __init__(self) -> None:
        memory = mmap(-1, 2 * RING_BYTES)
        self.outgoing, self.incoming = MessageRing(memory, 0), MessageRing(memory, RING_BYTES)
        self.state, self.pending = ExchangeState.new(), PendingRuns.new()
        self.short_run = ShortRun.new()
        kinds, spans = [((COUNT,), np.dtype(np.float32))], [(128, 128 + 4 * COUNT)]
        site = ExchangeSite([(self.outgoing, self.incoming)], HEADER, kinds, spans, spans[0][1])
        short_run = address(self.short_run)
        self.run = NativeRun([site], self.state, self.pending, short_run, 0)
        self.plan = ExchangePlan(int(self.run.plans[0].ctypes.data))
        self.value, self.room = np.arange(COUNT, dtype=np.float32), np.zeros(COUNT, np.float32)
        listed = [self.run.plans[0], self.value, self.room]
        self.operands = np.array([each.ctypes.data for each in listed], np.int64)
        self.finish = np.array([self.run.words.ctypes.data], np.int64)

    def sends(self, values: list[float], header: bytes = HEADER) -> None:
        """A message of the peer."""
        data = header + np.array(values, np.float32).tobytes()
        self.incoming.room(len(data))[:] = np.frombuffer(data, np.uint8)
        self.incoming.post(len(data))

    def runs(self, functions) -> int:
        """Run by native code; why it is unfinished."""
        for function, operands in zip(functions, (self.operands, self.finish), strict=True):
            function(operands.ctypes.data)
        why, self.short_run.unfinished = self.short_run.unfinished, 0
        return why


def test_arrays_are_exchanged(functions):
    worker = OneWorker()
    for step in range(40):  # more than a ring has slots
        worker.sends([step, 2, 3])
        assert worker.runs(functions) == 0
        assert worker.room.tolist() == [step, 2, 3] and worker.incoming.is_empty
        size, file, message = worker.outgoing.next()
        assert (size, file) == (140, -1) and message[:128].tobytes() == HEADER
        assert message[128:140].view(np.float32).tolist() == worker.value.tolist()
        worker.outgoing.free()
    assert worker.state.steps == 40 and worker.plan.limit == MOST_WAIT


def test_python_goes_on_where_a_peer_is_late(functions):
    worker = OneWorker()
    assert worker.runs(functions) == LATE and worker.plan.limit == MOST_WAIT // 2
    worker.sends([1, 2, 3])
    assert worker.runs(functions) == UNFINISHED  # Python comes first
    assert worker.pending.count == 1 and worker.outgoing.counters[0] == 1
    worker.run.take_over()
    assert worker.run.next() == (None, True)  # its message is posted already
    assert worker.pending.count == 0 and worker.state.steps == 0
    worker.run.take_over()
    assert worker.run.next() == (None, False)


def test_python_replays_what_was_exchanged(functions):
    worker = OneWorker()
    worker.sends([4, 5, 6])
    functions[0](worker.operands.ctypes.data)
    worker.short_run.unfinished = UNFINISHED  # a loop behind it, say
    functions[1](worker.finish.ctypes.data)
    worker.run.take_over()
    ((received,),), is_sent = worker.run.next()
    assert received.tolist() == [4, 5, 6] and is_sent and not worker.pending.count


@pytest.mark.parametrize("case", ["pending", "early", "cut short", "full"])
def test_nothing_is_sent_before_its_turn(case: str, functions):
    worker = OneWorker()
    worker.sends([1, 2, 3])
    worker.pending.count, worker.state.early = int(case == "pending"), int(case == "early")
    worker.short_run.unfinished = int(case == "cut short")
    written = 16 if case == "full" else 0
    worker.outgoing.counters[0] = written
    assert worker.runs(functions) == UNFINISHED
    assert worker.outgoing.counters[0] == written and not worker.incoming.is_empty


def test_messages_of_other_collectives_are_left_to_python(functions):
    worker = OneWorker()
    worker.sends([1, 2, 3], bytes(128))
    assert worker.runs(functions) == LATE and not worker.incoming.is_empty
    for _ in range(12):
        worker.run.take_over()
        worker.runs(functions)
    assert worker.plan.limit == LEAST_WAIT
