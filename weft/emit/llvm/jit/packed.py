"""Kernels as bytes: machine code that is linked as it is, by whoever runs the same versions.

It is code. It comes from the user's own cache, or from a file whose maker the user trusts.
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
    """What the text of a kernel depends on besides the kernel."""
    return f"{host()!r}, weft {code_digest()}"


def code_identity() -> str:
    """What machine code depends on besides."""
    return f"LLVM {llvm_version()}, {text_identity()}"


def packed(emitted: Sequence[Emitted]) -> bytes:
    """The machine code of kernels: a line of JSON, and the objects one after another."""
    codes = objects_of(emitted)
    rows = [
        ([(symbol(p.function, e.text), p.tasks, p.chunk) for p in e.phases], e.scratch, e.shared)
        for e in emitted
    ]
    head = {"for": code_identity(), "kernels": rows, "objects": [*map(len, codes)]}
    return json.dumps(head).encode() + b"\n" + b"".join(codes)


def unpacked(data: bytes) -> PackedCode | None:
    """What runs kernels that were packed; None if they are for another processor or version."""
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
    made: list[LoadedKernel] = []
    for phases, scratch, shared in head["kernels"]:
        if linked is None or not phases:
            made.append(LoadedKernel((), 0, 0, None))
            continue
        places = linked.addresses([name for name, _, _ in phases])
        rows = zip(places, phases, strict=True)
        found = tuple([LoadedPhase(place, tasks, chunk) for place, (_, tasks, chunk) in rows])
        made.append(LoadedKernel(found, scratch, shared, linked))
    return made


class PackedCode:
    """Runs the kernels of one program, whose code was there: it needs no compiler."""

    memory: Memory = HOST_MEMORY
    stream: Stream | None = None  # kernels have run when a call returns

    def __init__(self, loaded: Sequence[LoadedKernel]) -> None:
        self.loaded = loaded

    def load(self, kernels: Sequence[Any]) -> list[LoadedKernel]:
        """Kernels in memory; the different ones come in the order in which they were packed."""
        different = dict.fromkeys(kernels)
        if len(different) != len(self.loaded):
            raise WeftError(
                f"a program of {len(different)} kernels has machine code for {len(self.loaded)}",
                help="save the program again, or load it without trust=True",
            )
        known = dict(zip(different, self.loaded, strict=True))
        return [known[kernel] for kernel in kernels]

    def commands(self) -> CommandList:
        """An empty list of commands."""
        return CommandList()
