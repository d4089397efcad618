"""What a target makes of a kernel: text, and how its functions are to be called."""

from __future__ import annotations

import functools
import hashlib
import json
import zlib
from collections.abc import Sequence
from dataclasses import astuple, dataclass


@dataclass(frozen=True, slots=True)
class Phase:
    """A function of the text that runs tasks begin..end: void f(operands, scratch, begin, end).

    `operands` points to an array of pointers: one for each operand of the kernel, then one to the
    bytes that the tasks of all phases share (if there are any). `scratch` points to bytes that one
    thread has for itself. The phases of a kernel run one after another.
    """

    function: str
    tasks: int
    chunk: int = 1  # tasks that one thread takes at a time


@dataclass(frozen=True, slots=True)
class Emitted:
    """The text of a kernel for a target, and its phases."""

    text: str
    phases: tuple[Phase, ...]
    scratch: int = 0  # bytes a thread needs, aligned to 64
    shared: int = 0  # bytes that all tasks of a launch share, aligned to 64
    brief: bool = False  # so little to do that compiling it soon is worth more than fast code


def symbol(function: str, text: str) -> str:
    """The name that a function of a text has in its object: no two texts share one."""
    return f"{function}.{_digest(text)}"


@functools.lru_cache(maxsize=8)  # a text has many functions, one after another
def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:20]


def encode(emitted: Sequence[Emitted]) -> bytes:
    """Texts as bytes, for the cache."""
    return zlib.compress(json.dumps([astuple(made) for made in emitted]).encode(), 1)


def decode(data: bytes) -> list[Emitted]:
    """What was encoded. It is code: it must come from where nobody else can write."""
    rows = json.loads(zlib.decompress(data))
    return [
        Emitted(text, tuple([Phase(*p) for p in phases]), *rest) for text, phases, *rest in rows
    ]
