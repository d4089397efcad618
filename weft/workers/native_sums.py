"""Exchanges of small sums without Python: a partial sum to all other workers, and theirs.

The messages are those of `weft.workers.messages`, in the same rings: one worker may exchange by
native code while another does by Python. An exchange that does not complete soon is left to Python,
which waits without the GIL and explains failures; it finds its own messages posted already.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from weft.ir.types import Array
from weft.native.function import copy, native, to_int
from weft.native.libc import TimeSpec, clock_constants, now, sched_yield, syscall
from weft.native.memory import Items, Member, Pointer, Struct, address, i32
from weft.native.short_run import LATE, UNFINISHED, ShortRun
from weft.native.text import lowered_text, remembered_text
from weft.records import dataclass
from weft.workers.rings import (
    FIELDS,
    FUTEX,
    HEAD,
    READ_AT,
    SLOT_BYTES,
    SLOTS,
    WAIT,
    WAKE,
    MessageRing,
)

EXCHANGE, FINISH = "weft_exchange_sums", "weft_finish_sums"
MOST_WAIT, LEAST_WAIT = 3_000_000, 20_000  # nanoseconds of a wait, with the GIL held


class PendingRuns(Struct):
    """Runs by Python that come first, as messages are in order; the GIL guards it."""

    count: Member[int]


class ExchangeState(Struct):
    """The state that native exchanges of a worker share with Python; the GIL guards it."""

    early: Member[int]  # messages that Python has read and not yet awaited
    steps: Member[int]  # runs by native code


class RunProgress(Struct):
    """How far a run of a program has come; what is unfinished, Python runs from its start."""

    state: Member[ExchangeState]
    pending: Member[PendingRuns]
    short_run: Member[ShortRun]
    completed: Member[int]  # exchanges of an unfinished run
    posted: Member[int]  # whether the messages of the exchange after these are posted
    is_left: Member[int]  # whether Python has to continue it


class RingCounters(Struct, offsets={"written": (0, 4), "read": (READ_AT, 4)}):
    """The counters of a ring (see `weft.workers.rings`)."""

    written: Member[i32]
    read: Member[i32]


class RingSlot(Struct):
    """The fields before a message."""

    nbytes: Member[int]
    file: Member[int]


class RingPair(Struct):
    """The rings to and from another worker."""

    outgoing: Member[RingCounters]
    incoming: Member[RingCounters]


class ExchangePlan(Struct):
    """An exchange of some arrays with some workers, whose pairs of rings follow."""

    run: Member[RunProgress]
    index: Member[int]  # among the exchanges of the program
    header: Member[Items[int]]
    header_bytes: Member[int]
    nbytes: Member[int]  # of a message
    arrays: Member[int]
    peers: Member[int]
    spans: Member[Items[int]]  # for each array where it begins in a message, and its bytes
    spins: Member[int]  # looks at rings before the first sleep
    limit: Member[int]  # nanoseconds of a wait
    operands: Member[Pointer]  # of the last exchange that was completed


class ExchangeOperands(Struct):
    """The operands: the plan, each array, and for each peer room for each of its arrays."""

    plan: Member[ExchangePlan]


class FinishOperands(Struct):
    """The operands of the end of a run."""

    run: Member[RunProgress]


@native(name=EXCHANGE)
def exchange(operands: ExchangeOperands, scratch: Pointer, begin: int, end: int) -> None:
    """Post this worker's arrays to all peers, and read theirs: a kernel of a short run."""
    plan = operands.plan
    run = plan.run
    rings = RingPair(plan.nth(1))
    values = Items[Pointer](operands.nth(1))
    # What is unfinished has no values to send: a loop was cut short, or an earlier exchange.
    if run.short_run.unfinished == 0:
        if not may_begin(plan, run) or not have_room(plan, rings):
            run.short_run.unfinished = UNFINISHED
        else:
            post(plan, rings, values)
            if have_arrived(plan, rings) and are_expected(plan, rings):
                read(plan, rings, Items[Pointer](values.after(plan.arrays)))
                run.completed = plan.index + 1
                plan.operands = operands
                plan.limit = min(plan.limit << 1, MOST_WAIT)
            else:
                run.posted = 1
                plan.limit = max(plan.limit >> 1, LEAST_WAIT)
                run.short_run.unfinished = LATE


@native(name=FINISH)
def finish(operands: FinishOperands, scratch: Pointer, begin: int, end: int) -> None:
    """End a run: leave it to Python if it is unfinished."""
    run = operands.run
    if run.short_run.unfinished == 0:
        run.completed = 0
        run.state.steps = run.state.steps + 1
    elif run.is_left == 0 and (run.completed != 0 or run.posted != 0):
        run.is_left = 1
        run.pending.count = run.pending.count + 1


@native(attribute="alwaysinline")
def may_begin(plan: ExchangePlan, run: RunProgress) -> bool:
    """Whether no message of Python's comes first."""
    return run.pending.count == 0 and run.state.early == 0 and run.is_left == 0


@native(attribute="alwaysinline")
def slot_of(ring: RingCounters, counter: int) -> RingSlot:
    """The slot of the next message to be written or read."""
    return RingSlot(ring.plus(HEAD + (counter & (SLOTS - 1)) * (FIELDS + SLOT_BYTES)))


@native
def have_room(plan: ExchangePlan, rings: RingPair) -> bool:
    """Whether every peer's ring has room for a message."""
    for n in range(plan.peers):
        ring = rings.nth(n).outgoing
        if to_int(ring.written - RingCounters.read.load(ring, "acquire")) >= SLOTS:
            return False
    return True


@native
def post(plan: ExchangePlan, rings: RingPair, values: Items[Pointer]) -> None:
    """Write this worker's message into every peer's ring."""
    for n in range(plan.peers):
        ring = rings.nth(n).outgoing
        slot = slot_of(ring, to_int(ring.written))
        message = slot.plus(FIELDS)
        copy(message, plan.header, plan.header_bytes)
        for k in range(plan.arrays):
            copy(message.plus(plan.spans[2 * k]), values[k], plan.spans[2 * k + 1])
        slot.nbytes = plan.nbytes
        slot.file = -1
        # Release: the counter publishes the message.
        RingCounters.written.store(ring, ring.written + 1, "release")
    for n in range(plan.peers):
        syscall(FUTEX, rings.nth(n).outgoing, WAKE, 1, Pointer(0), Pointer(0), 0)


@native
def have_arrived(plan: ExchangePlan, rings: RingPair) -> bool:
    """Wait until every peer's message is there; whether all are, in time."""
    spins = plan.spins
    begun = 0
    for n in range(plan.peers):
        ring = rings.nth(n).incoming
        seen = RingCounters.written.load(ring, "acquire")
        while seen == ring.read:
            if spins > 0:
                spins -= 1
                sched_yield()
            else:
                time = now()
                if begun == 0:
                    begun = time
                left = plan.limit - (time - begun)
                if left <= 0:
                    return False
                timeout = TimeSpec.new()
                timeout.seconds = 0
                timeout.nanoseconds = left
                # Compared again by the system: a message that comes in between ends the sleep.
                syscall(FUTEX, ring, WAIT, seen, timeout, Pointer(0), 0)
            seen = RingCounters.written.load(ring, "acquire")
    return True


@native
def are_expected(plan: ExchangePlan, rings: RingPair) -> bool:
    """Whether all messages are of this collective."""
    for n in range(plan.peers):
        ring = rings.nth(n).incoming
        slot = slot_of(ring, to_int(ring.read))
        if slot.nbytes != plan.nbytes or slot.file >= 0:
            return False
        header = Items[int](slot.plus(FIELDS))
        for k in range(plan.header_bytes >> 3):
            if header[k] != plan.header[k]:
                return False
    return True


@native
def read(plan: ExchangePlan, rings: RingPair, into: Items[Pointer]) -> None:
    """Copy the peers' arrays out of their messages."""
    for n in range(plan.peers):
        ring = rings.nth(n).incoming
        message = slot_of(ring, to_int(ring.read)).plus(FIELDS)
        for k in range(plan.arrays):
            at = into[n * plan.arrays + k]
            copy(at, message.plus(plan.spans[2 * k]), plan.spans[2 * k + 1])
        RingCounters.read.store(ring, ring.read + 1, "release")


def exchange_text(triple: str) -> str:
    """The module of the functions, for a target."""
    constants, functions = clock_constants(triple), (exchange, finish)
    return remembered_text(
        "exchange",
        [Path(__file__).parent],
        {"triple": triple},
        lambda: lowered_text(triple, functions, constants),
    )


@dataclass(frozen=True, slots=True)
class ExchangeSite:
    """An exchange: its pairs of rings, to the peers and from them, and its messages."""

    rings: Sequence[tuple[MessageRing, MessageRing]]
    header: bytes
    kinds: Sequence[tuple[tuple[int, ...], np.dtype[Any]]]
    spans: Sequence[tuple[int, int]]  # where each array is in a message
    nbytes: int


class NativeRun:
    """The exchanges of a program, in memory that native code reads."""

    def __init__(
        self,
        sites: Sequence[ExchangeSite],
        state: ExchangeState,
        pending: PendingRuns,
        short_run: int,
        spins: int,
    ) -> None:
        pointers = [address(state), address(pending), short_run]
        words = dict(zip(("state", "pending", "short_run"), pointers, strict=True))
        self.sites = sites
        self.words = np.array(RunProgress.words(**words), np.int64)
        self.progress = RunProgress(int(self.words.ctypes.data))
        self._keep: list[object] = [state, pending]
        self.plans = [self._plan(n, site, spins) for n, site in enumerate(sites)]
        self._completed = self._posted = self._started = 0

    def _plan(self, index: int, site: ExchangeSite, spins: int) -> Array:
        """The words of an `ExchangePlan`."""
        header = np.frombuffer(site.header, np.int64).copy()
        spans = np.array([n for start, end in site.spans for n in (start, end - start)], np.int64)
        self._keep += [header, spans]
        words = ExchangePlan.words(
            run=int(self.words.ctypes.data),
            index=index,
            header=int(header.ctypes.data),
            header_bytes=header.nbytes,
            nbytes=site.nbytes,
            arrays=len(site.spans),
            peers=len(site.rings),
            spans=int(spans.ctypes.data),
            spins=spins,
            limit=MOST_WAIT,
        )
        for outgoing, incoming in site.rings:
            words += RingPair.words(outgoing=outgoing.address, incoming=incoming.address)
        return np.array(words, np.int64)

    def take_over(self) -> None:
        """Begin a run by Python, which continues native code's if that is unfinished."""
        progress = self.progress
        self._started = self._completed = self._posted = 0
        if progress.is_left:
            self._completed, self._posted = progress.completed, progress.posted
            progress.completed = progress.posted = progress.is_left = 0
            progress.pending.count -= 1

    def next(self) -> tuple[list[tuple[Array, ...]] | None, bool]:
        """The peers' arrays of the next exchange, if native code has them; whether it has sent."""
        number, self._started = self._started, self._started + 1
        if number < self._completed:
            return self._received(number), True
        return None, number == self._completed and bool(self._posted)

    def _received(self, number: int) -> list[tuple[Array, ...]]:
        """The arrays that native code has read, by peer."""
        site, plan = self.sites[number], ExchangePlan(int(self.plans[number].ctypes.data))
        at = Items[int](plan.operands).after(1 + len(site.kinds))
        return [
            tuple(
                [
                    _copied(at[peer * len(site.kinds) + k], *kind)
                    for k, kind in enumerate(site.kinds)
                ]
            )
            for peer in range(len(site.rings))
        ]


def _copied(at: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    made = np.empty(shape, dtype)
    ctypes.memmove(made.ctypes.data, at, made.nbytes)
    return made
