"""JAX's profile (`jax.profiler.trace`): what Weft compiles and runs, and when."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any

_NOTHING: AbstractContextManager[None] = nullcontext()


def span(what: str, name: str) -> AbstractContextManager[Any]:
    """The time of what is done inside, in JAX's profile if one is being made."""
    kind = _trace_me()
    return kind(f"weft {what} {name}") if kind.is_enabled() else _NOTHING


@cache
def _trace_me() -> Any:
    from jaxlib import _profiler

    return _profiler.TraceMe
