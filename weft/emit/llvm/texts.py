"""The caches of emitted texts: in memory, and on disk."""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from dataclasses import replace

from weft.cache.code import code_digest
from weft.cache.entry import Key
from weft.cache.store import the_store
from weft.emit.llvm.attention.attention import emit_attention
from weft.emit.llvm.emit import emit
from weft.emit.llvm.emitted import Emitted, decode, encode
from weft.emit.llvm.flow.emit import emit_flow
from weft.emit.llvm.jit.processor import Processor, host
from weft.emit.llvm.pool.thread_count import thread_count
from weft.emit.llvm.single.emit import emit_single_node
from weft.errors import WeftError
from weft.kernels.attention import Attention
from weft.kernels.flow import ControlFlow
from weft.kernels.group import AnyKernel
from weft.kernels.kernel import Kernel
from weft.kernels.single_node import SingleNode

TEXTS: dict[AnyKernel, Emitted] = {}  # texts of recently used kernels
MOST_TEXTS, MOST_CHARACTERS = 1024, 1 << 24  # characters kept
FEW_POINTS, FEW_BYTES = 1 << 10, 1 << 13  # below both, a launch takes longer than its kernel


def emitted(kernel: AnyKernel) -> Emitted:
    """The emitted text of a kernel, cached."""
    text = TEXTS.get(kernel)
    if text is None:
        made = emitted_for(kernel, host())
        _make_room(len(made.text))
        text = TEXTS[kernel] = replace(made, brief=True) if _is_brief(kernel) else made
    return text


def remember(kernels: Sequence[AnyKernel], name: str) -> None:
    """Write the texts of kernels to the disk cache."""
    the_store().put(_key(name), encode([emitted(kernel) for kernel in kernels]))


def recall(kernels: Sequence[AnyKernel], name: str) -> None:
    """Load texts from the disk cache, where present; none if all are in memory."""
    if all(kernel in TEXTS for kernel in kernels):
        return
    store, key = the_store(), _key(name)
    stored = store.get(key)
    if stored is None:
        return
    try:
        # In the order that `remember` wrote them in: entries have no names of their own.
        TEXTS.update(zip(kernels, decode(stored), strict=True))
    except (ValueError, TypeError, zlib.error):
        store.refuse(key)


def adopt(kernels: Sequence[AnyKernel], data: bytes) -> None:
    """Use texts serialized elsewhere, whose origin the caller trusts."""
    try:
        TEXTS.update(zip(kernels, decode(data), strict=True))
    except (ValueError, TypeError, zlib.error) as error:
        raise WeftError(
            f"the emitted text of a program cannot be read: {error}",
            help="save the program again, or load it without trust=True",
        ) from None


def _key(name: str) -> Key:
    # Work is divided for the threads of a process: those of `taskset` are fewer.
    processor = f"{host()!r}, threads: {thread_count()}"
    parts = (("kernels", name), ("processor", processor), ("code", code_digest()))
    return Key("texts", name[:8], parts)


def _make_room(characters: int) -> None:
    """Evict the oldest texts to make room for so many characters."""
    entries = [*TEXTS.items()]  # in one step: other threads compile, too
    total = characters + sum([len(cached.text) for _, cached in entries])
    for left, (kernel, cached) in zip(range(len(entries), 0, -1), entries, strict=True):
        if left < MOST_TEXTS and total <= MOST_CHARACTERS:
            return
        TEXTS.pop(kernel, None)
        total -= len(cached.text)


def _is_brief(kernel: AnyKernel) -> bool:
    """Whether a kernel is so short-running that unoptimized code will do."""
    if isinstance(kernel, ControlFlow):
        return False
    points = math.prod([f.size for f in kernel.factors]) if isinstance(kernel, Kernel) else 0
    return points <= FEW_POINTS and sum([o.nbytes for o in kernel.operands]) <= FEW_BYTES


def emitted_for(kernel: AnyKernel, processor: Processor) -> Emitted:
    """The text of a kernel for any processor, not only this machine's."""
    match kernel:
        case Kernel():
            return emit(kernel, processor)
        case SingleNode():
            return emit_single_node(kernel, processor)
        case Attention():
            return emit_attention(kernel, processor)
        case ControlFlow():
            return emit_flow(kernel, lambda inner: emitted_for(inner, processor))
