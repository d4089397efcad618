"""JAX's own cache of compiled programs, which asks for platforms by their names."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from weft.jax.buffers.client import PLATFORM
from weft.patches import replace_in_jax

NOT_STORED = "calls Python functions of this process, so it cannot be stored"


class _Cached:
    """What JAX looks at to see whether programs of a platform can be stored."""

    platform = "cpu"
    supports_executable_serialization = True


def use_cache() -> None:
    """Have JAX store programs of Weft in its cache, if it has one; those that can be stored."""
    replace_in_jax("jax._src.compilation_cache:is_cache_used", _used)
    replace_in_jax("jax._src.compiler:_cache_write", _written)


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


def _written(theirs: Callable[..., None]) -> Callable[..., None]:
    """JAX's own way to store, but for programs of Weft that call Python: these cannot be stored."""

    def write(
        key: str, seconds: float, name: str, backend: Any, executable: Any, *callbacks: Any
    ) -> None:
        if backend.platform == PLATFORM and _calls_python(executable):
            _log_not_written(name)
        else:  # JAX 0.10 passes the callbacks of the program, later versions do not
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


def _calls_python(executable: Any) -> bool:
    from jax.errors import JaxRuntimeError

    try:
        executable.serialize()
    except JaxRuntimeError as error:
        return NOT_STORED in str(error)
    return False
