"""Packed kernels: machine code as bytes, linked unchanged by the same versions.

It is executable code: from the user's own cache, or from a trusted file.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from weft.array.host import HOST_MEMORY
from weft.array.memory import Memory, Stream
from weft.cache.code import code_digest
from weft.emit.llvm.emitted import Emitted, symbol
from weft.emit.llvm.jit.engine import LoadedKernel, LoadedPhase, objects_of
from weft.emit.llvm.jit.linking import Linked
from weft.emit.llvm.jit.processor import host, llvm_version
from weft.emit.llvm.pool.commands import CommandList
from weft.errors import WeftError


def text_identity() -> str:
    """The cache key of a kernel's text, besides the kernel."""
    return f"{host()!r}, weft {code_digest()}"


def code_identity() -> str:
    """The cache key of machine code, besides the text."""
    return f"LLVM {llvm_version()}, {text_identity()}"


def packed(emitted: Sequence[Emitted]) -> bytes:
    """The machine code of kernels: a line of JSON, and the concatenated objects."""
    codes = objects_of(emitted)
    rows = [
        ([(symbol(p.function, e.text), p.tasks, p.chunk) for p in e.phases], e.scratch, e.shared)
        for e in emitted
    ]
    head = {"for": code_identity(), "kernels": rows, "objects": [*map(len, codes)]}
    return json.dumps(head).encode() + b"\n" + b"".join(codes)


def unpacked(data: bytes) -> PackedCode | None:
    """The runtime of packed kernels; None if processor or version differ."""
    line, _, rest = data.partition(b"\n")
    try:
        head = json.loads(line)
        if head["for"] != code_identity():
            return None
        return PackedCode([*_loaded(head, rest)])
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise WeftError(
            f"the machine code of a program cannot be read: {error}",
            help="save the program again, or load it without trust=True",
        ) from None


def _loaded(head: Any, rest: bytes) -> list[LoadedKernel]:
    objects: list[bytes] = []
    at = 0
    for length in head["objects"]:
        objects.append(rest[at : at + length])
        at += length
    if at != len(rest):
        raise ValueError(f"objects of {at} bytes, in {len(rest)}")
    linked = Linked(objects) if objects else None
    kernels: list[LoadedKernel] = []
    for phases, scratch, shared in head["kernels"]:
        if linked is None or not phases:
            kernels.append(LoadedKernel((), 0, 0, None))
            continue
        places = linked.addresses([name for name, _, _ in phases])
        rows = zip(places, phases, strict=True)
        found = tuple([LoadedPhase(place, tasks, chunk) for place, (_, tasks, chunk) in rows])
        kernels.append(LoadedKernel(found, scratch, shared, linked))
    return kernels


class PackedCode:
    """Runs precompiled kernels of one program without a compiler."""

    memory: Memory = HOST_MEMORY
    stream: Stream | None = None  # synchronous

    def __init__(self, loaded: Sequence[LoadedKernel]) -> None:
        self.loaded = loaded

    def load(self, kernels: Sequence[Any]) -> list[LoadedKernel]:
        """Load kernels; distinct ones are in the order of packing."""
        different = dict.fromkeys(kernels)
        if len(different) != len(self.loaded):
            raise WeftError(
                f"a program of {len(different)} kernels has machine code for {len(self.loaded)}",
                help="save the program again, or load it without trust=True",
            )
        known = dict(zip(different, self.loaded, strict=True))
        return [known[kernel] for kernel in kernels]

    def commands(self) -> CommandList:
        """An empty launch queue."""
        return CommandList()
