"""The registry of targets: Weft's own, and those of installed packages.

A package offers a target as an entry point of the group `weft.targets`: a factory from
`weft.target.Options` to `weft.target.Target`. It is imported on demand.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from weft.emit.llvm.jit.processor import has_llvm
from weft.errors import WeftError
from weft.knobs import TARGET, TUNE, TUNES, Tune

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from weft.target import Options, Runtime, Target

GROUP = "weft.targets"


def _llvm(options: Options, *, runs: bool = True) -> Target:
    if runs and not has_llvm():
        raise WeftError("the llvm target needs llvmlite", help="pip install 'weft[cpu]'")
    from weft.emit.llvm.target import LLVM

    return LLVM(options)


def _numpy(options: Options) -> Target:
    from weft.emit.numpy.target import Numpy

    return Numpy(options)


def _triton(options: Options, *, runs: bool = True) -> Target:
    from weft.emit.triton.source import require_gpu
    from weft.emit.triton.target import Triton

    if runs:
        require_gpu()
    return Triton(options)


BUILT_IN: dict[str, Callable[[Options], Target]] = {
    "llvm": _llvm,
    "numpy": _numpy,
    "triton": _triton,
}


def target_named(
    name: str | None,
    *,
    fold_sums: bool = True,
    tune: Tune | None = None,
    excess_precision: bool = True,
    runs: bool = True,
) -> Target:
    """The target of a name.

    The default is WEFT_TARGET, else llvm if it is installed, or if nothing `runs`.
    """
    if tune not in (None, *TUNES):
        raise WeftError(f"unknown tune mode {tune!r}", help=f"expected {', '.join(TUNES)}")
    from weft.target import Options

    options = Options(fold_sums, excess_precision, TUNE.value() if tune is None else tune)
    name = TARGET.value() if name is None else name
    if not runs and name in (None, "llvm"):
        return _llvm(options, runs=False)
    if not runs and name == "triton":
        return _triton(options, runs=False)
    if name is None:
        if has_llvm():
            return _llvm(options)
        _say_once(
            "llvmlite is not installed: nodes run one by one in numpy; pip install 'weft[cpu]'"
        )
        return _numpy(options)
    if name in BUILT_IN:
        return BUILT_IN[name](options)
    if name not in _plugins():
        raise WeftError(f"unknown target {name!r}", help=f"expected {', '.join(target_names())}")
    return _plugged(_plugins()[name], options)


def code_identity(name: str) -> str | None:
    """The cache key of machine code besides kernels; None if the target keeps none."""
    if name != "llvm" or not has_llvm():
        return None
    from weft.emit.llvm.jit.packed import code_identity

    return code_identity()


def unpacked(name: str, code: bytes) -> Runtime | None:
    """The runtime for precompiled kernels; None if their version differs.

    It imports the runtime only, not the emitter.
    """
    if code_identity(name) is None:
        return None
    from weft.emit.llvm.jit.packed import unpacked

    return unpacked(code)


def target_names() -> tuple[str, ...]:
    """All target names, without importing any."""
    return (*BUILT_IN, *_plugins())


def is_target(name: str) -> bool:
    """Whether a target has this name."""
    return name in BUILT_IN or name in _plugins()


def installed_targets() -> tuple[dict[str, Target], list[WeftError]]:
    """All targets with kernels, and the errors of broken ones."""
    from weft.target import Options

    targets: dict[str, Target] = {"llvm": _llvm(Options(), runs=False)}
    if find_spec("triton") is not None:
        targets["triton"] = _triton(Options(), runs=False)
    broken: list[WeftError] = []
    for name, plugin in _plugins().items():
        try:
            targets[name] = _plugged(plugin, Options())
        except WeftError as error:
            broken.append(error)
    return targets, broken


@cache
def _plugins() -> dict[str, EntryPoint]:
    """Entry points of installed packages, by name; Weft's own names take precedence."""
    from importlib.metadata import entry_points

    named = {found.name: found for found in entry_points(group=GROUP)}
    return {name: found for name, found in named.items() if name not in BUILT_IN}


def _plugged(entry: EntryPoint, options: Options) -> Target:
    from weft.target import Target

    package = f"{entry.dist.name} {entry.dist.version}" if entry.dist else entry.value
    try:
        plugged = entry.load()(options)
    except Exception as error:
        raise WeftError(
            f"the target {entry.name!r} of package {package} cannot be loaded: "
            f"{type(error).__name__}: {error}",
            help=f"update or uninstall {package.partition(' ')[0]}, or choose another target",
        ) from error
    if not isinstance(plugged, Target):
        raise WeftError(
            f"the target {entry.name!r} of package {package} "
            f"is not a target, but a {type(plugged).__name__}",
            help="a target has to be a weft.target.Target",
        )
    return plugged


@cache
def _say_once(message: str) -> None:
    warnings.warn(message, stacklevel=2)


def target_of(values: Iterable[Any]) -> str | None:
    """The target of programs on arguments in a GPU's memory; None for the default."""
    places = {getattr(getattr(value, "device", None), "type", None) for value in values}
    return "triton" if "cuda" in places else None
