"""Emitted kernels: LLVM IR and the calling convention of its functions."""

from __future__ import annotations

import functools
import hashlib
import json
import zlib
from collections.abc import Sequence
from dataclasses import astuple

from weft.records import dataclass


@dataclass(frozen=True, slots=True)
class Phase:
    """A function that runs tasks begin..end: void f(operands, scratch, begin, end).

    `operands` points to an array of pointers: one for each operand of the kernel, then one to the
    workspace shared by the tasks of all phases (if any). `scratch` is thread-private memory. The
    phases of a kernel run one after another, with a barrier between them.
    """

    function: str
    tasks: int
    chunk: int = 1  # tasks that a thread claims at a time


@dataclass(frozen=True, slots=True)
class Emitted:
    """The LLVM IR of a kernel, and its phases."""

    text: str
    phases: tuple[Phase, ...]
    scratch: int = 0  # bytes of scratch a thread, aligned to 64
    shared: int = 0  # bytes of workspace shared by all tasks, aligned to 64
    brief: bool = False  # short-running: compile time matters more than code quality
    optimized: bool = False  # a flow: LLVM's whole pipeline merges its kernels into their caller


@dataclass(frozen=True, slots=True)
class SourceText:
    """A text to compile: its name in the cache, and whether compile time matters most."""

    name: str
    text: str
    brief: bool = False
    optimized: bool = False


def symbol(function: str, text: str) -> str:
    """The symbol of a function in its object: unique over all texts."""
    return f"{function}.{_digest(text)}"


@functools.lru_cache(maxsize=8)  # a text has many functions, looked up in a row
def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:20]


def encode(emitted: Sequence[Emitted]) -> bytes:
    """Serialize texts, for the cache."""
    return zlib.compress(json.dumps([astuple(made) for made in emitted]).encode(), 1)


def decode(data: bytes) -> list[Emitted]:
    """Deserialize texts. They are code: the source must be trusted."""
    rows = json.loads(zlib.decompress(data))
    return [
        Emitted(text, tuple([Phase(*p) for p in phases]), *rest) for text, phases, *rest in rows
    ]
