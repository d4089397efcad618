"""Trace annotations in JAX's profile (`jax.profiler.trace`) for compilations and runs."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any

_NOTHING: AbstractContextManager[None] = nullcontext()


def span(what: str, name: str) -> AbstractContextManager[Any]:
    """A trace annotation, if a profile is being recorded."""
    kind = _trace_me()
    return kind(f"weft {what} {name}") if kind.is_enabled() else _NOTHING


@cache
def _trace_me() -> Any:
    from jaxlib import _profiler

    return _profiler.TraceMe
