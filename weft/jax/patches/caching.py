"""Patches of JAX's compilation cache: the platform's name, and programs with Python callbacks.

A program refers to its Python callbacks by process-wide numbers and by indices in the program.
JAX's cache keys contain the indices only. A cached program is bound to the callbacks of the program
that was looked up.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

from weft.jax.buffers.client import PLATFORM
from weft.patches import replace_in_jax

NOT_STORED = "calls Python functions of this process, so it cannot be stored"
_LOOKED_UP: ContextVar[Any] = ContextVar("the program that JAX compiles or reads", default=None)
_PROCESS = os.urandom(16)  # in keys of programs that must not be shared between processes


class _Cached:
    """The attributes by which JAX decides whether a platform's programs can be cached."""

    platform = "cpu"
    supports_executable_serialization = True


def use_cache() -> None:
    """Enable JAX's cache for Weft's programs."""
    replace_in_jax("jax._src.compilation_cache:is_cache_used", _used)
    replace_in_jax("jax._src.compiler:_cache_write", _written)
    replace_in_jax("jax._src.compiler:compile_or_get_cached", _looking_up)
    replace_in_jax("jax._src.cache_key:_hash_computation", _hashing)


def functions_looked_up() -> dict[int, int] | None:
    """The callback numbers by index of the program that JAX is looking up."""
    computation = _LOOKED_UP.get()
    if computation is None:
        return None
    found = [op.attributes["backend_config"] for op in _own_calls(computation)]
    return {c["index"].value: c["function"].value for c in found if "index" in c}


def _used(theirs: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """JAX's check, with Weft added to the supported platforms."""

    def is_cache_used(backend: Any) -> bool:
        from jax._src import compilation_cache

        if backend.platform != PLATFORM:
            return theirs(backend)
        there = compilation_cache._cache is not None  # a folder, or a cache object set by the user
        is_wanted = there or compilation_cache.is_persistent_cache_enabled()
        # JAX is always called, as it counts cache users; keys are computed only if there is a
        # cache.
        # Not short-circuited the other way round: JAX's function has effects.
        return theirs(_Cached()) and is_wanted

    return is_cache_used


def _looking_up(theirs: Callable[..., Any]) -> Callable[..., Any]:
    """JAX's compile-or-load, with the program recorded meanwhile."""

    def compile_or_get_cached(backend: Any, computation: Any, *rest: Any, **named: Any) -> Any:
        before = _LOOKED_UP.set(computation if backend.platform == PLATFORM else None)
        try:
            return theirs(backend, computation, *rest, **named)
        finally:
            _LOOKED_UP.reset(before)

    return compile_or_get_cached


def _hashing(theirs: Callable[..., None]) -> Callable[..., None]:
    """JAX's hash of a program, without callback numbers."""

    def hash_computation(hashed: Any, module: Any, *rest: Any) -> None:
        from jaxlib.mlir import ir

        calls = list(_own_calls(module))
        if not calls:
            theirs(hashed, module, *rest)
            return
        with module.context:
            copy = module.operation.clone()
            for op in _own_calls(copy):
                config = op.attributes["backend_config"]
                if "index" in config:
                    kept = {a.name: a.attr for a in config if a.name != "function"}
                    op.attributes["backend_config"] = ir.DictAttr.get(kept)
                else:  # an inspected sharding, delivered while compiling: needed in every process
                    # A stored program would skip compilation, and with it the callback that reports
                    # the sharding.
                    hashed.update(_PROCESS)
            theirs(hashed, copy, *rest)

    return hash_computation


def _own_calls(module: Any) -> Iterator[Any]:
    """The calls in a program that refer to Python callbacks of this process."""
    from jaxlib.mlir import ir

    from weft.ops.custom_calls.callbacks import CALLS, INSPECT

    calls: list[Any] = []

    def visit(op: Any) -> Any:
        if op.name == "stablehlo.custom_call":
            name = op.attributes["call_target_name"].value
            if name in CALLS or name == INSPECT:
                calls.append(op)
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    return iter(calls)


def _written(theirs: Callable[..., None]) -> Callable[..., None]:
    """JAX's cache write; JAX 0.10 stores no programs with callbacks."""

    def write(
        key: str, seconds: float, name: str, backend: Any, executable: Any, *callbacks: Any
    ) -> None:
        # JAX 0.10 passes the program's callbacks, later versions do not
        if callbacks and backend.platform == PLATFORM and functions_looked_up():
            _log_not_written(name)
        else:
            theirs(key, seconds, name, backend, executable, *callbacks)

    return write


def _log_not_written(name: str) -> None:
    """Log JAX 0.10's message for programs with callbacks; later versions store them."""
    from jax._src import compiler, config

    level = logging.WARNING if config.explain_cache_misses.value else logging.DEBUG
    compiler.logger.log(
        level,
        "Not writing persistent cache entry for '%s' because it uses host callbacks "
        "(e.g. from jax.debug.print or breakpoint)",
        name,
    )
