"""JAX's own cache of compiled programs: the platform's name, and Python functions in programs.

A program names the Python functions that it calls by their numbers in this process, and by their
indices in the program. JAX's cache keys have the indices only. A program that is read from the
cache is bound to the functions of the program that was looked up.
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
    """What JAX looks at to see whether programs of a platform can be stored."""

    platform = "cpu"
    supports_executable_serialization = True


def use_cache() -> None:
    """Have JAX store programs of Weft in its cache, if it has one."""
    replace_in_jax("jax._src.compilation_cache:is_cache_used", _used)
    replace_in_jax("jax._src.compiler:_cache_write", _written)
    replace_in_jax("jax._src.compiler:compile_or_get_cached", _looking_up)
    replace_in_jax("jax._src.cache_key:_hash_computation", _hashing)


def functions_looked_up() -> dict[int, int] | None:
    """The numbers of a program's Python functions by index, while JAX looks it up in its cache."""
    computation = _LOOKED_UP.get()
    if computation is None:
        return None
    found = [op.attributes["backend_config"] for op in _own_calls(computation)]
    return {c["index"].value: c["function"].value for c in found if "index" in c}


def _used(theirs: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """JAX's own answer, with Weft among the platforms that it lists."""

    def is_cache_used(backend: Any) -> bool:
        from jax._src import compilation_cache

        if backend.platform != PLATFORM:
            return theirs(backend)
        there = compilation_cache._cache is not None  # a folder, or what a program has put there
        is_wanted = there or compilation_cache.is_persistent_cache_enabled()
        # JAX is asked in any case, and counts who uses a cache; keys are only made for one.
        return theirs(_Cached()) and is_wanted

    return is_cache_used


def _looking_up(theirs: Callable[..., Any]) -> Callable[..., Any]:
    """JAX's own way to compile or read a program, which is known meanwhile."""

    def compile_or_get_cached(backend: Any, computation: Any, *rest: Any, **named: Any) -> Any:
        before = _LOOKED_UP.set(computation if backend.platform == PLATFORM else None)
        try:
            return theirs(backend, computation, *rest, **named)
        finally:
            _LOOKED_UP.reset(before)

    return compile_or_get_cached


def _hashing(theirs: Callable[..., None]) -> Callable[..., None]:
    """JAX's own hash of a program, without the numbers of Python functions."""

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
                else:  # a sharding that is told while compiling, so in every process
                    hashed.update(_PROCESS)
            theirs(hashed, copy, *rest)

    return hash_computation


def _own_calls(module: Any) -> Iterator[Any]:
    """The calls of a program that name Python functions of this process."""
    from jaxlib.mlir import ir

    from weft.ops.custom_calls.callbacks import CALLS, INSPECT

    found: list[Any] = []

    def visit(op: Any) -> Any:
        if op.name == "stablehlo.custom_call":
            name = op.attributes["call_target_name"].value
            if name in CALLS or name == INSPECT:
                found.append(op)
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    return iter(found)


def _written(theirs: Callable[..., None]) -> Callable[..., None]:
    """JAX's own way to store; JAX 0.10 stores no programs that call Python."""

    def write(
        key: str, seconds: float, name: str, backend: Any, executable: Any, *callbacks: Any
    ) -> None:
        # JAX 0.10 passes the callbacks of the program, later versions do not
        if callbacks and backend.platform == PLATFORM and functions_looked_up():
            _log_not_written(name)
        else:
            theirs(key, seconds, name, backend, executable, *callbacks)

    return write


def _log_not_written(name: str) -> None:
    """Log what JAX 0.10 logs of programs that call Python; later versions store their own."""
    from jax._src import compiler, config

    level = logging.WARNING if config.explain_cache_misses.value else logging.DEBUG
    compiler.logger.log(
        level,
        "Not writing persistent cache entry for '%s' because it uses host callbacks "
        "(e.g. from jax.debug.print or breakpoint)",
        name,
    )
