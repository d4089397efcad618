"""The texts of the thread pool, of loops and of calls, for a target."""

from __future__ import annotations

from pathlib import Path

from weft.emit.llvm.pool.call import StackObject, call
from weft.emit.llvm.pool.repeat import repeat
from weft.emit.llvm.pool.run_commands import copy_bytes, run, run_raw
from weft.emit.llvm.pool.sleep import sleep_constants
from weft.emit.llvm.pool.threads import spin, start, stop
from weft.native.libc import clock_constants
from weft.native.text import lowered_text, remembered_text

_HERE = Path(__file__).parent
POOL_FUNCTIONS = (start, stop, run, spin, copy_bytes, repeat, run_raw)


def pool_text(triple: str, *, futex: bool | None = None) -> str:
    """The module of the pool's functions; `futex` says how to sleep."""
    constants = {**clock_constants(triple), **sleep_constants(triple, futex)}
    parts = {"triple": triple, "constants": str(constants)}
    return remembered_text(
        "pool", [_HERE], parts, lambda: lowered_text(triple, POOL_FUNCTIONS, constants)
    )


def call_text(triple: str) -> str:
    """The module of `call`, for this Python."""
    places = {name: str(field.offset) for name, field in StackObject.FIELDS.items()}
    return remembered_text(
        "call", [_HERE], {"triple": triple, **places}, lambda: lowered_text(triple, (call,))
    )
