"""The pass runner: passes arguments by name, verifies every result, and times each pass."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Sequence
from dataclasses import fields
from functools import cache
from typing import Any, TypeAlias

from weft.errors import WeftError
from weft.ir.gc_pause import without_gc
from weft.ir.module import Module, Node
from weft.ir.verify import verify
from weft.machine import HOST, Machine
from weft.optimize.collectives.combine_collectives import MOST_BYTES, MOST_OPS
from weft.records import dataclass

Pass: TypeAlias = Callable[..., Module]
# The numeric options, and the minimum of each.
LEAST = {"compute_streams": 1, "communication_streams": 1, "combine_bytes": 0, "combine_ops": 0}


@dataclass(frozen=True, slots=True)
class PassOptions:
    """Options of passes; a pass gets those that its signature names."""

    machine: Machine = HOST
    compute_streams: int = 4
    communication_streams: int = 1
    combine_bytes: int | None = None  # the limit of a combined collective; None: by the machine
    combine_ops: int = MOST_OPS

    def __post_init__(self) -> None:
        for name, least in LEAST.items():
            count = getattr(self, name)
            if count is None and _DEFAULTS[name] is None:
                continue
            if not isinstance(count, int) or isinstance(count, bool) or count < least:
                raise WeftError(
                    f"{name}={count!r}: expected a number from {least} on",
                    help=f"leave it out for {_default_text(name)}",
                )


_DEFAULTS = {f.name: f.default for f in fields(PassOptions) if f.name in LEAST}


def _default_text(name: str) -> str:
    default = _DEFAULTS[name]
    return f"{MOST_BYTES:,}, or the machine's" if default is None else f"{default:,}"


def given_numbers(**numbers: int | None) -> dict[str, int]:
    """The numeric options that are not None, checked."""
    given = {name: number for name, number in numbers.items() if number is not None}
    PassOptions(HOST, **given)
    return given


@dataclass(frozen=True, slots=True)
class PassRecord:
    """The record of a pass: its name, the module after it, and its seconds."""

    name: str
    module: Module
    changed: bool
    seconds: float
    verifying: float  # seconds of the verifier after it


PassWatch: TypeAlias = Callable[[PassRecord], None]


def run_passes(
    module: Module, passes: Sequence[Pass], options: PassOptions, watch: PassWatch | None = None
) -> Module:
    """Run passes in order; `watch` is called after each."""
    with without_gc():
        return _run_passes(module, passes, options, watch)


def _run_passes(
    module: Module, passes: Sequence[Pass], options: PassOptions, watch: PassWatch | None
) -> Module:
    verified: Module | None = None
    sound: set[Node] = set()
    for run in passes:
        begun = time.perf_counter()
        result = run(module, **_options_for(run, options))
        ended = time.perf_counter()
        try:
            # A pass that changes nothing returns the module itself, which is verified already.
            verified = result if result is verified else verify(result, sound)
        except WeftError as error:
            error.message = f"after {run.__name__}: {error.message}"
            raise
        checked = time.perf_counter()
        if watch is not None:
            changed = result is not module
            watch(PassRecord(run.__name__, result, changed, ended - begun, checked - ended))
        module = result
    return module


def _options_for(run: Pass, options: PassOptions) -> dict[str, Any]:
    return {name: getattr(options, name) for name in _named(run)}


@cache
def _named(run: Pass) -> tuple[str, ...]:
    known = {field.name for field in fields(PassOptions)}
    return tuple(name for name in inspect.signature(run).parameters if name in known)
