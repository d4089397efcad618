"""Weft compiles and runs PyTorch and JAX programs on many devices, in Python.

Exports are imported on first use: a JAX program that only lists devices does not wait for the
compiler.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any

from weft.executable.version import __version__
from weft.ir.gc_pause import importing

if TYPE_CHECKING:
    from weft.array import Array, devices, put, put_local
    from weft.capture import attention, constrain, parse
    from weft.compiled import Compiled, compile  # noqa: A004  # the usual name
    from weft.errors import Unsupported, WeftError
    from weft.evaluate import evaluate
    from weft.ir.module import Module
    from weft.loaded import load
    from weft.mesh import Mesh, P
    from weft.planner.search import plan
    from weft.remote.client import connect
    from weft.state import load_state, save_state
    from weft.training import train_step

__all__ = [
    "Array",
    "Compiled",
    "Mesh",
    "Module",
    "P",
    "Unsupported",
    "WeftError",
    "__version__",
    "attention",
    "compile",
    "connect",
    "constrain",
    "devices",
    "evaluate",
    "load",
    "load_state",
    "parse",
    "plan",
    "put",
    "put_local",
    "save_state",
    "train_step",
]

# The module of each exported name.
_HOMES = {
    "Array": "weft.array",
    "Compiled": "weft.compiled",
    "Mesh": "weft.mesh",
    "Module": "weft.ir.module",
    "P": "weft.mesh",
    "Unsupported": "weft.errors",
    "WeftError": "weft.errors",
    "attention": "weft.capture",
    "compile": "weft.compiled",
    "connect": "weft.remote.client",
    "constrain": "weft.capture",
    "devices": "weft.array",
    "load": "weft.loaded",
    "load_state": "weft.state",
    "parse": "weft.capture",
    "plan": "weft.planner.search",
    "put": "weft.array",
    "put_local": "weft.array",
    "save_state": "weft.state",
    "train_step": "weft.training",
}

_LAUNCHED = {"RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"}  # set by launchers


def __getattr__(name: str) -> Any:
    """An exported name, or a module of the package, at its first use."""
    if name in _HOMES:
        _choose_gpu()
        with importing():
            value = getattr(importlib.import_module(_HOMES[name]), name)
        if arrays := sys.modules.get("weft.array"):
            arrays.Array.computed_by(_compute)
        globals()[name] = value
        return value
    if not name.startswith("_") and importlib.util.find_spec(f"{__name__}.{name}"):
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _choose_gpu() -> None:
    """Have a worker begin with its own GPU, if the script has imported PyTorch."""
    if sys.modules.get("torch"):
        from weft.workers.local_gpu import choose_gpu  # most scripts are of one process

        choose_gpu()


def _tell_jax() -> None:
    """Have `jax.distributed.initialize` need no arguments in a launched process."""
    if not _LAUNCHED.isdisjoint(os.environ):
        from weft.workers.jax_cluster import tell_jax  # most scripts are of one process

        tell_jax()


def _compute(op: str, args: tuple[Any, ...], options: Mapping[str, Any]) -> Any:
    """Compute an operator of arrays, by the compiler."""
    from weft.eager import compute

    return compute(op, args, options)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


class _Package(ModuleType):
    """The package class, so that the module `weft.evaluate` does not shadow the function."""

    @property
    def evaluate(self) -> Any:
        """The reference: any module, on any number of devices, in numpy."""
        return importlib.import_module("weft.evaluate").evaluate

    @evaluate.setter
    def evaluate(self, value: object) -> None:
        """Ignore the import system's assignment of the submodule."""
        assert isinstance(value, ModuleType), "weft.evaluate is a function, and stays so"


sys.modules[__name__].__class__ = _Package
_choose_gpu()
_tell_jax()
