"""Monkey patches of JAX: functions that Weft replaces, and tables that it extends.

JAX has no extension point for these. Nothing else in Weft assigns to JAX's attributes.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import reduce
from typing import Any

from weft.errors import WeftError
from weft.records import dataclass

Release = tuple[int, int]  # major and minor version of JAX


@dataclass(frozen=True, slots=True)
class Patch:
    """One patched attribute of JAX, and the reason."""

    where: str  # "module:name", or "module:class.name"
    why: str
    first: Release = (0, 10)  # the releases that it was tested with
    last: Release = (0, 12)

    @property
    def module(self) -> str:
        """The module that defines it."""
        return self.where.partition(":")[0]

    @property
    def path(self) -> list[str]:
        """Its attribute path in the module."""
        return self.where.partition(":")[2].split(".")

    def holder(self) -> Any:
        """The module or class that holds the attribute."""
        return reduce(getattr, self.path[:-1], importlib.import_module(self.module))

    def theirs(self) -> Any:
        """JAX's current value of the attribute."""
        try:
            return getattr(self.holder(), self.path[-1])
        except (ImportError, AttributeError):
            from importlib.metadata import version  # imported here: slow

            span = f"{_text(self.first)} to {_text(self.last)}"
            raise WeftError(
                f"JAX {version('jax')} has no {self.where}, which Weft patches: {self.why}",
                help=f"install jax {span}, which Weft was tested with",
            ) from None


REPLACED = (
    Patch(
        "jax._src.pjit:convert_to_metaty",
        "jit reads the sharding of any argument, and that of Weft's arrays is not JAX's",
    ),
    Patch(
        "jax._src.compilation_cache:is_cache_used",
        "JAX lists the platforms whose programs its cache takes, without Weft",
    ),
    Patch(
        "jax._src.compiler:_cache_write",
        "JAX 0.10 stores no programs that call Python, and does not see which of Weft's do",
    ),
    Patch(
        "jax._src.compiler:compile_or_get_cached",
        "a program from the cache calls the Python functions of the program that was looked up",
    ),
    Patch(
        "jax._src.cache_key:_hash_computation",
        "callbacks are identified by ids of this process, which must not be part of a cache key",
    ),
    Patch(
        "jax._src.compiler:backend_compile_and_load",
        "a program whose compilation is interrupted must outlive the thread that compiles it",
    ),
    Patch(
        "jax._src.interpreters.pxla:MeshComputation.cost_analysis",
        "JAX asks only its own platforms for the costs of what is not compiled yet",
    ),
    Patch(
        "jax._src.callback:emit_python_callback",
        "primitives of users that call Python are lowered by it, for JAX's platforms only",
    ),
    Patch(
        "jax.interpreters.mlir:emit_python_callback",
        "the public name of the same function",
    ),
    Patch(
        "jax._src.debugging:debug_callback_impl",
        "outside of programs, JAX calls back from a CPU device of its own, which may not be there",
    ),
    Patch(
        "jax._src.debugging:debug_callback_p.impl",
        "the reference to the same function that the primitive holds",
    ),
    Patch(
        "jax._src.export._export:_call_exported_lowering",
        "programs that were exported for CPUs run on Weft's devices, too",
    ),
    Patch(
        "jax._src.config:_update_transfer_guard",
        "while transfers to the host are guarded, arrays have to be copied there for JAX to see it",
    ),
    Patch(
        "jax._src.dlpack:_jax",
        "JAX's compiled functions exchange arrays of its own devices only",
    ),
    Patch(
        "jax._src.dlpack:_DL_DEVICE_TO_PLATFORM",
        "memory of the host goes to the platform that is used, not to CPU devices",
    ),
    Patch(
        "jax._src.lib:_jax.get_distributed_runtime_client",
        "a process that connects before JAX's service listens tries again after a second",
    ),
    Patch(
        "jax._src.array:ArrayImpl.__dlpack_device__",
        "it refuses arrays of platforms that it does not list",
    ),
)
EXTENDED = (
    Patch("jax._src.core:pytype_aval_mappings", "the types of Weft's arrays"),
    Patch("jax._src.interpreters.pxla:shard_arg_handlers", "Weft's arrays as arguments of jit"),
    Patch("jax._src.interpreters.mlir:_platform_specific_lowerings", "lowerings for Weft"),
    Patch("jax._src.interpreters.mlir:_platforms_with_donation", "Weft takes donated buffers"),
    Patch(
        "jax._src.export._export:_CUSTOM_CALL_TARGETS_GUARANTEED_STABLE",
        "calls of Weft's own that exported programs may have",
    ),
    Patch(
        "jax._src.clusters.cluster:ClusterEnv._cluster_types",
        "the variables of more launchers, which go before Slurm's in whose jobs they may run",
    ),
)
_MADE: dict[str, Any] = {}  # installed replacements, by attribute


def replace_in_jax(where: str, make: Callable[[Any], Any]) -> None:
    """Replace a listed attribute of JAX by `make(original)`, once."""
    if where not in _MADE:
        patch = _listed(where, REPLACED)
        made = _MADE[where] = make(patch.theirs())
        setattr(patch.holder(), patch.path[-1], made)


def table_of_jax(where: str) -> Any:
    """A listed table of JAX that Weft extends."""
    return _listed(where, EXTENDED).theirs()


def _listed(where: str, patches: tuple[Patch, ...]) -> Patch:
    return next(patch for patch in patches if patch.where == where)


def _text(release: Release) -> str:
    return ".".join(map(str, release))
