"""The source of native functions: syntax trees and free variables."""

from __future__ import annotations

import ast
import functools
import linecache
from typing import Any

from weft.errors import WeftError


@functools.lru_cache(maxsize=32)
def _functions(path: str) -> dict[int, ast.FunctionDef]:
    """The functions of a file, by the line of their first decorator."""
    # Parsed once for all functions of a file: `inspect.getsource` tokenizes it again for each.
    tree = ast.parse("".join(linecache.getlines(path)))
    found = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    return {min([n.lineno, *[d.lineno for d in n.decorator_list]]): n for n in found}


def tree_of(python: Any) -> tuple[ast.FunctionDef, str]:
    """The syntax tree of a function, and its file."""
    code = python.__code__
    tree = _functions(code.co_filename).get(code.co_firstlineno)
    if tree is None:
        raise WeftError(
            f"{python.__module__} has no source file, from which native code is lowered",
            help="install weft with its .py files",
        )
    return tree, code.co_filename


def closure_of(python: Any) -> dict[str, Any]:
    """The free variables of a nested function, by name."""
    cells = python.__closure__ or ()
    return dict(zip(python.__code__.co_freevars, [c.cell_contents for c in cells], strict=True))
