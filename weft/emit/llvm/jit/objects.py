"""Objects of texts: from the cache, or compiled in parallel."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

from weft.cache.entry import Key
from weft.cache.store import DiskStore, the_store
from weft.emit.llvm.emitted import SourceText
from weft.emit.llvm.jit.processor import Processor, host, llvm_version

Progress = Callable[[int, int], None]

# Part of every object's cache key, besides text and processor: incremented with each change of the
# supplied functions or of the compilation pipeline.
PIPELINE = "bodies 2, always inline, sroa, code 2"
OPTIMIZED = "bodies 2, speed 2, code 2"


def object_key(source: SourceText, processor: Processor) -> Key:
    """The cache key of an object."""
    return Key(
        "kernel",
        source.name,
        (
            ("text", hashlib.sha256(source.text.encode()).hexdigest()),
            ("triple", processor.triple),
            ("cpu", processor.cpu),
            ("features", processor.features),
            ("LLVM version", llvm_version()),
            ("passes", _passes(source)),
        ),
    )


def _passes(source: SourceText) -> str:
    if source.optimized:
        return OPTIMIZED
    return f"{PIPELINE}, brief" if source.brief else PIPELINE


def objects(
    sources: Sequence[SourceText],
    progress: Progress | None = None,
    processor: Processor | None = None,
    store: DiskStore | None = None,
) -> list[bytes]:
    """The objects of texts; `progress` receives (done, total)."""
    processor, store = processor or host(), store or the_store()
    keys = [object_key(source, processor) for source in sources]
    codes = [store.get(key) for key in keys]
    done = sum(code is not None for code in codes)
    missing = [n for n, code in enumerate(codes) if code is None]
    if progress is not None and done:
        progress(done, len(sources))
    if missing:
        from weft.emit.llvm.jit.compiling import compiled  # cache hits need no compiler

        for place, code in compiled({n: sources[n] for n in missing}, processor):
            codes[place] = code
            # One by one: an interrupted compilation keeps what is done.
            store.put(keys[place], code)
            done += 1
            if progress is not None:
                progress(done, len(sources))
    return [code for code in codes if code is not None]
