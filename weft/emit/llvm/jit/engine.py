"""The engine: emitted texts become functions in memory, each text compiled once.

How to run kernels, from emitted texts to a native call:

    loaded = load([emit(kernel) for kernel in kernels])        # LoadedKernels, in the same order
    commands = CommandList()
    at = commands.kernel(loaded[0], [x.ctypes.data, y.ctypes.data])   # pointers to its operands
    commands.copy(to=y.ctypes.data, source=x.ctypes.data, nbytes=x.nbytes)
    commands.run()                       # one native call on all threads, without the GIL
    commands.pointers[at] = other.ctypes.data  # operand 0 of the first command is elsewhere now
    commands.run()

`pointers` is a numpy array of all operands of all commands; `at` is the index of a command's first.
Workspace (`Emitted.shared`) and scratch belong to the pool and are not passed. Commands keep the
code of their kernels alive, but not the arrays: the caller does.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import field
from weakref import WeakValueDictionary

from weft.emit.llvm.emitted import Emitted, Phase, SourceText, symbol
from weft.emit.llvm.jit.linking import Linked
from weft.emit.llvm.jit.objects import Progress, objects
from weft.emit.llvm.jit.processor import llvm_lock
from weft.native.forks import after_fork
from weft.records import dataclass


@dataclass(frozen=True, slots=True)
class LoadedPhase:
    """A loaded function: its address, task count, and tasks a chunk."""

    address: int
    tasks: int
    chunk: int


@dataclass(frozen=True, slots=True)
class LoadedKernel:
    """A callable kernel; keeps its code alive."""

    phases: tuple[LoadedPhase, ...]
    scratch: int
    shared: int
    code: Linked | None = field(repr=False, compare=False)
    asks: bool = False  # whether its loops poll for signals, which may end it


_LOCK = threading.RLock()
_HELD = ExitStack()  # LLVM's lock, held during a fork
_LINKED: WeakValueDictionary[str, Linked] = WeakValueDictionary()


def load(emitted: Sequence[Emitted], progress: Progress | None = None) -> list[LoadedKernel]:
    """Compile, link and look up the functions of kernels; `progress` receives (done, total)."""
    with _LOCK:
        # Weakly held: code is unmapped when the last kernel that uses it is gone.
        linked = {e.text: found for e in emitted if (found := _LINKED.get(e.text))}
        missing = _sources([e for e in emitted if e.text not in linked])
        if missing:
            made = Linked(objects([*missing.values()], progress))
            linked |= dict.fromkeys(missing, made)
            _LINKED.update(dict.fromkeys(missing, made))
    loaded = {e: _loaded(e, linked.get(e.text)) for e in dict.fromkeys(emitted)}
    return [loaded[e] for e in emitted]


class NativeLibrary:
    """The functions of a text that are called by address; keeps their code alive."""

    def __init__(self, text: str, names: Sequence[str]) -> None:
        # A Phase describes a function of a kernel and its task count; only its name is used here.
        (self.kernel,) = load([Emitted(text, tuple([Phase(name, 1) for name in names]))])
        found = [phase.address for phase in self.kernel.phases]
        self.addresses = dict(zip(names, found, strict=True))


def objects_of(emitted: Sequence[Emitted]) -> list[bytes]:
    """The objects of kernels, one for each distinct text."""
    return objects([*_sources(emitted).values()])


def _sources(emitted: Sequence[Emitted]) -> dict[str, SourceText]:
    """The distinct texts; a kernel without outputs has none."""
    return {
        e.text: SourceText(e.phases[0].function, e.text, e.brief, e.optimized)
        for e in emitted
        if e.phases
    }


def _loaded(emitted: Emitted, linked: Linked | None) -> LoadedKernel:
    if linked is None:  # a kernel without outputs
        return LoadedKernel((), 0, 0, None)
    names = [symbol(phase.function, emitted.text) for phase in emitted.phases]
    phases = tuple(
        LoadedPhase(address, phase.tasks, phase.chunk)
        for address, phase in zip(linked.addresses(names), emitted.phases, strict=True)
    )
    return LoadedKernel(phases, emitted.scratch, emitted.shared, linked, emitted.optimized)


def _before_fork() -> None:
    """Wait until no thread is inside of LLVM: in a child its locks would stay held."""
    _LOCK.acquire()
    _HELD.enter_context(llvm_lock())


def _after_fork() -> None:
    _HELD.close()
    _LOCK.release()


after_fork(_after_fork, before=_before_fork, in_parent=_after_fork)
