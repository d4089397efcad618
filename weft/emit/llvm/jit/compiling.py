"""Parallel compilation of texts."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed

from weft.emit.llvm.emitted import SourceText
from weft.emit.llvm.jit.machine_code import Compiler
from weft.emit.llvm.jit.processor import Processor
from weft.emit.llvm.pool.thread_count import thread_count

# Texts of this size compile in about 20 ms; for less, threads do not pay off.
_WORTH_THREADS = 40_000


def compiled(sources: dict[int, SourceText], processor: Processor) -> Iterator[tuple[int, bytes]]:
    """The objects of texts as they complete; the longest texts start first."""
    threads = min(thread_count(), len(sources))
    if threads < 2 or sum(map(_effort, sources.values())) < _WORTH_THREADS:
        for place, source in sources.items():
            yield place, _object(source, processor)
        return

    def one(place: int) -> tuple[int, bytes]:
        return place, _object(sources[place], processor)

    with ThreadPoolExecutor(threads, "weft-compile") as executor:
        order = sorted(sources, key=lambda n: -_effort(sources[n]))
        waiting = [executor.submit(one, n) for n in order]
        try:
            for future in as_completed(waiting):
                yield future.result()
        finally:
            # An error or an interrupt of the reader: texts that have not begun are not compiled.
            for future in waiting:
                future.cancel()


def _effort(source: SourceText) -> int:
    """The estimated compile time of a text, as if fully optimized."""
    return len(source.text) // (3 if source.brief else 1)


_IDLE: dict[tuple[Processor, bool, bool], list[Compiler]] = {}


def _object(source: SourceText, processor: Processor) -> bytes:
    """Compile a text with an idle compiler."""
    idle = _IDLE.setdefault((processor, source.brief, source.optimized), [])
    try:
        # A compiler has one user at a time; pop and append of a list are atomic, so no lock is
        # needed.
        compiler = idle.pop()
    except IndexError:
        compiler = Compiler(processor, brief=source.brief, optimized=source.optimized)
    made = compiler.object(source.text)
    idle.append(compiler)
    return made
