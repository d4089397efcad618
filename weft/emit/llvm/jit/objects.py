"""Objects of texts: from the cache, or compiled, several at the same time."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass

from weft.cache.entry import Key
from weft.cache.store import DiskStore, the_store
from weft.emit.llvm.jit.machine_code import PIPELINE, Compiler, Processor, host, llvm_version
from weft.emit.llvm.pool.thread_count import thread_count

Progress = Callable[[int, int], None]

# Texts of this many characters compile in about 20 ms; with less to do threads do not pay.
_WORTH_THREADS = 40_000


@dataclass(frozen=True, slots=True)
class SourceText:
    """A text to compile: the name that the cache shows, and whether code is wanted soon."""

    name: str
    text: str
    brief: bool = False


def object_key(source: SourceText, processor: Processor) -> Key:
    """What an object is made of, and what the cache knows it by."""
    return Key(
        "kernel",
        source.name,
        (
            ("text", hashlib.sha256(source.text.encode()).hexdigest()),
            ("triple", processor.triple),
            ("cpu", processor.cpu),
            ("features", processor.features),
            ("LLVM version", llvm_version()),
            ("passes", f"{PIPELINE}, brief" if source.brief else PIPELINE),
        ),
    )


def objects(
    sources: Sequence[SourceText],
    progress: Progress | None = None,
    processor: Processor | None = None,
    store: DiskStore | None = None,
) -> list[bytes]:
    """The objects of texts; `progress` is told (done, total) as they come."""
    processor, store = processor or host(), store or the_store()
    keys = [object_key(source, processor) for source in sources]
    found = [store.get(key) for key in keys]
    done = sum(code is not None for code in found)
    missing = [n for n, code in enumerate(found) if code is None]
    if progress is not None and done:
        progress(done, len(sources))
    for place, code in _compiled({n: sources[n] for n in missing}, processor):
        found[place] = code
        store.put(keys[place], code)
        done += 1
        if progress is not None:
            progress(done, len(sources))
    return [code for code in found if code is not None]


def _compiled(sources: dict[int, SourceText], processor: Processor) -> Iterator[tuple[int, bytes]]:
    """The object of each text, as they come; the longest texts are begun first."""
    threads = min(thread_count(), len(sources))
    if threads < 2 or sum(map(_effort, sources.values())) < _WORTH_THREADS:
        for place, source in sources.items():
            yield place, _object(source, processor)
        return

    def compiled(place: int) -> tuple[int, bytes]:
        return place, _object(sources[place], processor)

    with ThreadPoolExecutor(threads, "weft-compile") as executor:
        order = sorted(sources, key=lambda n: -_effort(sources[n]))
        waiting = [executor.submit(compiled, n) for n in order]
        try:
            for future in as_completed(waiting):
                yield future.result()
        finally:
            for future in waiting:
                future.cancel()


def _effort(source: SourceText) -> int:
    """How long a text takes, as if all were compiled with care."""
    return len(source.text) // (3 if source.brief else 1)


_IDLE: dict[tuple[Processor, bool], list[Compiler]] = {}


def _object(source: SourceText, processor: Processor) -> bytes:
    """The object of a text, by a compiler that nobody else uses now."""
    idle = _IDLE.setdefault((processor, source.brief), [])
    try:
        compiler = idle.pop()
    except IndexError:
        compiler = Compiler(processor, brief=source.brief)
    made = compiler.object(source.text)
    idle.append(compiler)
    return made
