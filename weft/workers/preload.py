"""Imports of the fork server for the workers of a script: by the script's own import statements.

Importing PyTorch takes longer than everything else until a first step. Scripts that import only
packages that are known to do without it, as those of JAX, do not wait for it. What stands inside of
functions is imported by the worker that calls them.

JAX reads its variables when it is imported: a script that may set some imports it by itself.
"""

from __future__ import annotations

import ast
import importlib.util
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from pathlib import Path

# What a worker has imported at its first step: the stages of the compiler.
COMPILER = (
    "weft.compiled",
    "weft.loaded",
    "weft.array",
    "weft.capture.stablehlo",
    "llvmlite.binding",
    "weft.emit.llvm.target",
    "weft.emit.numpy.across",
    "weft.workers.cluster",
)
TORCH = ("torch", "torch.distributed")
JAX = (
    "jax",
    "jax.numpy",
    "weft.jax.plugin",
    "weft.jax.parts",
    "weft.jax.patches.exporting",
    "jax._src.buffer_callback",
    "jax._src.checkify",
    "jaxlib.mlir.dialects.builtin",
    "jaxlib.mlir.dialects.mhlo",
    "jax_plugins.weft",
)
# Installed packages that do not import PyTorch by themselves.
_WITHOUT_TORCH = {"weft", "numpy", "ml_dtypes", "scipy", "jax", "jaxlib", "optax", "llvmlite"}
_SETTERS = ("environ.setdefault", "environ.update", "environ.__setitem__", "putenv")
_MODULES = 200  # files of the user's own that are read at most


def preloaded(command: Sequence[str]) -> tuple[str, ...]:
    """The modules to import before the workers of a command are forked."""
    path = _module_file(command[1]) if command[0] == "-m" else Path(command[0])
    if path is None:  # of an installed package, which may import anything
        return (*TORCH, *COMPILER)
    trees, roots = _closure(path)
    known = {*sys.stdlib_module_names} | _WITHOUT_TORCH
    jax = JAX if "jax" in roots and not any(map(_sets_jax, trees)) else ()
    return (*(() if roots <= known else TORCH), *jax, *COMPILER)


def _sets_jax(tree: ast.Module) -> bool:
    """Whether a file sets a variable of JAX's."""
    for node in ast.walk(tree):
        match node:
            case ast.Assign(targets=[ast.Subscript() as target]):
                text = ast.unparse(target)
            case ast.AugAssign(target=ast.Attribute()):
                text = ast.unparse(node)
            case ast.Call(func=ast.Attribute() | ast.Name() as called):
                name = ast.unparse(called)
                text = ast.unparse(node) if name.endswith(_SETTERS) else ""
            case _:
                continue
        if "JAX_" in text and ("environ" in text or "putenv" in text):
            return True
    return False


def _closure(path: Path) -> tuple[list[ast.Module], set[str]]:
    """A script and its user's own modules, parsed, and the other packages they import."""
    folder, trees, roots = path.resolve().parent, list[ast.Module](), set[str]()
    waiting, seen = [path], {path}
    while waiting:
        try:
            tree = ast.parse(waiting.pop().read_bytes())
        except (OSError, SyntaxError, ValueError):  # the worker reports it
            continue
        trees.append(tree)
        for name, is_module in _imported(tree):
            file = _file_in(folder, name.split(".")) or _module_file(name)
            if file is None and is_module:
                roots.add(name.partition(".")[0])
            elif file is not None and file not in seen:
                seen.add(file)
                waiting.append(file)
        if len(seen) > _MODULES:
            return trees, {"torch"}  # too many to tell
    return trees, roots


def _imported(tree: ast.Module) -> Iterator[tuple[str, bool]]:
    """The names that a file imports when it is imported itself, and whether each is a module.

    Others may be modules of a package, or anything in a module.
    """
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        match node:
            case ast.Import(names=names):
                yield from [(alias.name, True) for alias in names]
            case ast.ImportFrom(module=str(module), level=0, names=names):
                yield module, True
                yield from [(f"{module}.{alias.name}", False) for alias in names]
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.Lambda():
                continue
        waiting += ast.iter_child_nodes(node)


def _module_file(name: str) -> Path | None:
    """The file of a module of the user's own; None for installed ones and unknown names."""
    root, *rest = name.split(".")
    if root in sys.stdlib_module_names or root in _WITHOUT_TORCH:
        return None
    try:
        spec = importlib.util.find_spec(root)
    except (ImportError, ValueError):
        return None
    if spec is None:
        return None
    places = [*(spec.submodule_search_locations or ())]
    own = Path(places[0] if places else spec.origin or "")
    if any(own.is_relative_to(sysconfig.get_path(kind)) for kind in ("purelib", "platlib")):
        return None
    return _file_in(own, rest) if places else own if own.is_file() else None


def _file_in(folder: Path, parts: Sequence[str]) -> Path | None:
    """The file of a module in a folder."""
    place = folder.joinpath(*parts)
    candidates = (place.with_suffix(".py"), place / "__init__.py")
    return next((each for each in candidates if parts and each.is_file()), None)
