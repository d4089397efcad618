"""Commands: kernels and copies that run one after another in one native call."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from weft.array.stacked import Kind, Stacked
from weft.emit.llvm.flow.interrupts import interruptions
from weft.emit.llvm.jit.engine import LoadedKernel
from weft.emit.llvm.pool.call import StackPlan, StacksCall
from weft.emit.llvm.pool.pool import Pool, address, aligned, functions, lone_pool, the_pool
from weft.emit.llvm.pool.state import CommandHead, CommandRow
from weft.emit.llvm.pool.threads import WAKE
from weft.native.cpython import pointer_to
from weft.records import dataclass
from weft.target import StackBinding

_TOOK = CommandHead.took.word
_CHUNK_TAKES = 3000  # nanoseconds at least, before it is known how many
_COPIED_AT_ONCE = 1 << 18  # bytes of a copy that one task moves


@dataclass(frozen=True, slots=True)
class RawLaunch:
    """Handles for native code to run commands in its own thread, without Python."""

    run: int  # function address; takes state and commands, returns 0 on success
    state: int
    commands: int
    pointers: int  # address of the operand table
    keep: object  # keeps the code and its memory alive
    short_run: int = 0  # address of the state of short runs, if loops may take too long for one


class CommandList:
    """A list of commands; it is written once and run often."""

    def __init__(self, pool: Pool | None = None) -> None:
        self._pool = pool or the_pool()
        self._rows: list[list[int]] = []  # of CommandRow, with an index of the operands
        self._operands: list[int] = []
        self._shared_slots: list[int] = []
        self._shared = 0
        self._keep: list[LoadedKernel] = []
        self._asks = False  # whether signals may end a kernel
        self._sealed: npt.NDArray[np.uint64] | None = None
        self._pointers = np.zeros(0, np.uint64)
        self._at = 0  # where the sealed rows are
        self._shared_at = 0

    def kernel(self, loaded: LoadedKernel, operands: Sequence[int]) -> int:
        """Run a kernel on operands at these addresses; returns where they begin in `pointers`."""
        # Shared bytes are one more operand, whose address is only known at a run: it is written by
        # `_place`.
        at = self._new([*operands, 0] if loaded.shared else operands)
        if loaded.shared:
            self._shared_slots.append(at + len(operands))
            # Kernels run one after another, so one block serves all of them.
            self._shared = max(self._shared, loaded.shared)
        for phase in loaded.phases:
            if phase.tasks:
                assert phase.chunk > 0, "a chunk has tasks"
                self._add(phase.address, at, phase.tasks, phase.chunk, loaded.scratch)
        self._keep.append(loaded)
        self._asks |= loaded.asks
        return at

    def copy(self, to: int, source: int, nbytes: int) -> int:
        """Copy disjoint bytes; returns where `to` and then `source` are in `pointers`."""
        at = self._new([to, source, nbytes, _COPIED_AT_ONCE])
        tasks = -(-nbytes // _COPIED_AT_ONCE)
        if tasks:
            self._add(functions().copy, at, tasks, 1, 0)
        return at

    @property
    def pointers(self) -> npt.NDArray[np.uint64]:
        """The operand addresses of all commands; write those that change between runs here."""
        self._seal()
        return self._pointers

    def run(self) -> None:
        """Run all commands, without the GIL."""
        if self._sealed is None:
            self._seal()
        if self._asks:
            self._run_asking()
        elif self._shared:
            self._pool.run_shared(self._at, self._shared, self._place)
        else:
            self._pool.run(self._at)

    def _run_asking(self) -> None:
        with self._pool.lock:
            self._pool.run_shared(self._at, self._shared, self._place)
            interruptions().raise_up()

    def on_stacks(
        self, inputs: Sequence[StackBinding], outputs: Sequence[StackBinding]
    ) -> Callable[[tuple[Stacked | None, ...], tuple[Stacked, ...]], bool]:
        """A function that runs all commands on stacks, whose addresses it writes into `pointers`.

        It returns False, and runs nothing, if the given stacks are not of the kinds described.
        """
        self._seal()
        pool, at = self._pool, int(self._pointers.ctypes.data)
        descriptor = StacksCall.words(
            run=pool.run_at,
            commands=self._at,
            type=pointer_to(Stacked),
            arrays=pointer_to(np.ndarray),
            inputs=len(inputs),
            outputs=len(outputs),
        )
        for kind, places in (*inputs, *outputs):
            descriptor += _plan_words(kind, len(places))
            descriptor += [at + 8 * place for place in places]
        # Kept alive by the function's default argument below: native code has the address of the
        # words, of the kinds and of the operand table, and no reference to them.
        words = np.array(descriptor, np.uint64)
        keep, descriptor_at = (self, words, inputs, outputs), int(words.ctypes.data)

        def run(
            inputs: tuple[Stacked | None, ...], outputs: tuple[Stacked, ...], keep: object = keep
        ) -> bool:
            # `id` is the address of an object in CPython; the arguments of this call keep both
            # tuples alive.
            return pool.call(descriptor_at, id(inputs), id(outputs)) == 0

        def run_shared(
            inputs: tuple[Stacked | None, ...], outputs: tuple[Stacked, ...], keep: object = keep
        ) -> bool:
            needs = (self._shared, self._place)
            return pool.call(descriptor_at, id(inputs), id(outputs), *needs) == 0

        def run_asking(inputs: tuple[Stacked | None, ...], outputs: tuple[Stacked, ...]) -> bool:
            with pool.lock:
                ran = run_shared(inputs, outputs) if self._shared else run(inputs, outputs)
                interruptions().raise_up()
            return ran

        if self._asks:
            return run_asking
        return run_shared if self._shared else run

    def raw_launch(self, keep: object) -> RawLaunch:
        """Handles for native code to run all commands; the caller becomes their only owner."""
        self._seal()
        # A loop that asks takes the GIL, which the caller has: no other thread may run it.
        pool = lone_pool() if self._asks or not self._divides() else self._pool
        shared = aligned(self._shared)
        if self._shared:
            self._place(address(shared))
        pointers = int(self._pointers.ctypes.data)
        short_run = interruptions().short_run_at if self._asks else 0
        held = (self, shared, keep)
        return RawLaunch(pool.run_raw_at, pool.state_at, self._at, pointers, held, short_run)

    def _divides(self) -> bool:
        """Whether commands have so many chunks that waking threads may pay off."""
        return bool(self._sealed is not None and int(self._sealed[0, _TOOK]) > WAKE)

    def repeat(self, work: CommandList, verdict: int, moves: int, limit: int) -> int:
        """Run this, a test, and then `work`, as long as the byte at `verdict` is not 0.

        `moves` is the address of the table of rotating buffers (see `weft.emit.llvm.pool.repeat`).
        The number of rounds; after `limit` of them the loop may have more to do.
        """
        self._seal()
        work._seal()

        def place(shared_at: int) -> None:
            self._place(shared_at)
            work._place(shared_at)

        loop = (self._at, work._at, verdict, moves, limit)
        with self._pool.lock:
            rounds = self._pool.repeat(loop, max(self._shared, work._shared), place)
            if self._asks or work._asks:
                interruptions().raise_up()
        return rounds

    def _add(self, function: int, operands: int, tasks: int, chunk: int, scratch: int) -> None:
        self._rows.append(
            CommandRow.words(
                function=function, operands=operands, tasks=tasks, chunk=chunk, scratch=scratch
            )
        )

    def _new(self, operands: Sequence[int]) -> int:
        assert self._sealed is None, "commands that have run are complete"
        at = len(self._operands)
        self._operands += operands
        return at

    def _seal(self) -> None:
        if self._sealed is None:
            self._pointers = np.array(self._operands, np.uint64)
            tasks, chunk, operands = (
                field.word for field in (CommandRow.tasks, CommandRow.chunk, CommandRow.operands)
            )
            # A guess for the first run, in which nothing was measured: chunks are cut so that each
            # takes a few microseconds at least.
            shared = [-(-r[tasks] // r[chunk]) for r in self._rows if r[tasks] > r[chunk]]
            head = CommandHead.words(count=len(self._rows), took=sum(shared) * _CHUNK_TAKES)
            rows = np.array([head, *self._rows], np.uint64)
            # Until here operands were indices: the table could still move while it grew.
            rows[1:, operands] *= np.uint64(8)
            rows[1:, operands] += np.uint64(self._pointers.ctypes.data)
            self._at, self._sealed = int(rows.ctypes.data), rows

    def _place(self, shared_at: int) -> None:
        # The block only grows, so this is rare; writing every time would dirty the table's cache
        # lines.
        if shared_at != self._shared_at:
            self._pointers[self._shared_slots] = shared_at
            self._shared_at = shared_at


def _plan_words(kind: Kind, operands: int) -> list[int]:
    """The plan of a stack; one device's may be a numpy array of the caller's."""
    is_one = kind.sub_axes.count == 1
    sizes = kind.shape[len(kind.sub_axes.sizes) :] if is_one else ()
    dtype = pointer_to(kind.dtype) if is_one else 0
    words = StackPlan.words(kind=pointer_to(kind), dtype=dtype, rank=len(sizes), operands=operands)
    return [*words, *sizes]
