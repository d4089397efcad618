"""Objects of texts: from the cache, or compiled, several at the same time."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed

from weft.cache.entry import Key
from weft.cache.store import Store, the_store
from weft.emit.llvm.machine_code import PIPELINE, Compiler, Processor, host, llvm_version
from weft.emit.llvm.thread_count import thread_count

Progress = Callable[[int, int], None]

# Texts of this many characters compile in about 20 ms; with less to do threads do not pay.
_WORTH_THREADS = 40_000


def object_key(name: str, text: str, processor: Processor) -> Key:
    """What an object is made of, and what the cache knows it by."""
    return Key(
        "kernel",
        name,
        (
            ("text", hashlib.sha256(text.encode()).hexdigest()),
            ("triple", processor.triple),
            ("cpu", processor.cpu),
            ("features", processor.features),
            ("LLVM version", llvm_version()),
            ("passes", PIPELINE),
        ),
    )


def objects(
    texts: Sequence[tuple[str, str]],
    progress: Progress | None = None,
    processor: Processor | None = None,
    store: Store | None = None,
) -> list[bytes]:
    """The objects of named texts; `progress` is told (done, total) as they come."""
    processor, store = processor or host(), store or the_store()
    keys = [object_key(name, text, processor) for name, text in texts]
    found = [store.get(key) for key in keys]
    done = sum(code is not None for code in found)
    missing = [n for n, code in enumerate(found) if code is None]
    if progress is not None and done:
        progress(done, len(texts))
    for place, code in _compiled({n: texts[n][1] for n in missing}, processor):
        found[place] = code
        store.put(keys[place], code)
        done += 1
        if progress is not None:
            progress(done, len(texts))
    return [code for code in found if code is not None]


def _compiled(texts: dict[int, str], processor: Processor) -> Iterator[tuple[int, bytes]]:
    """The object of each text, as they come; the longest texts are begun first."""
    threads = min(thread_count(), len(texts))
    if threads < 2 or sum(len(text) for text in texts.values()) < _WORTH_THREADS:
        compiler = Compiler(processor) if texts else None
        for place, text in texts.items():
            assert compiler is not None
            yield place, compiler.object(text)
        return
    own = threading.local()

    def compiled(place: int) -> tuple[int, bytes]:
        if not hasattr(own, "compiler"):
            own.compiler = Compiler(processor)
        made: bytes = own.compiler.object(texts[place])
        return place, made

    with ThreadPoolExecutor(threads, "weft-compile") as executor:
        waiting = [
            executor.submit(compiled, n) for n in sorted(texts, key=lambda n: -len(texts[n]))
        ]
        try:
            for future in as_completed(waiting):
                yield future.result()
        finally:
            for future in waiting:
                future.cancel()
