"""JAX functions in scripts: `script.py:function`, their arguments and shardings."""

from __future__ import annotations

import ast
import difflib
import inspect
import os
import re
import runpy
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

import weft
from weft.capture import Captured, capture
from weft.capture.jax import trace
from weft.capture.jax.trace import flatten
from weft.capture.jax.values import to_physical
from weft.cli.screen import plural
from weft.errors import WeftError
from weft.ir.location import Location, escape, fuse
from weft.ir.module import Module
from weft.ir.types import Array
from weft.mesh import Mesh
from weft.records import dataclass

_SCRIPT = re.compile(r"(.+\.py)(?::(.*))?", re.S)
SourceRange: TypeAlias = tuple[str, int, int]  # file, line, column
_MESSAGE_LINES = 8  # the most lines of a user's exception that are shown
_LIBRARIES = tuple({sysconfig.get_path(n) + os.sep for n in ("stdlib", "purelib", "platlib")})
_JAX = f"{os.sep}jax{os.sep}"
_WEFT = str(Path(weft.__file__).parent) + os.sep
_CALLERS = ("<frozen runpy>", trace.__file__)  # they run scripts and trace functions


@dataclass(frozen=True)
class Script:
    """A function of a script, with its inputs and shardings."""

    path: str
    name: str
    names: dict[str, Any]

    @property
    def function(self) -> Callable[..., Any]:
        """The function itself."""
        value = self.names.get(self.name)
        if not callable(value):
            known = functions_in(self.path)
            near = difflib.get_close_matches(self.name, known, n=1)
            hint = f"did you mean {near[0]}? " if near else ""
            raise WeftError(
                f"{self.path} has no function {self.name!r}",
                help=f"{hint}it has {', '.join(known) or 'none'}",
            )
        function: Callable[..., Any] = value
        return function

    def inputs(self) -> tuple[Any, ...]:
        """The function's arguments, as defined in the script."""
        function, value = self.function, self.beside("inputs")
        if value is None:
            raise WeftError(
                f"{self.path} defines no arguments for {self.name}",
                help=f"define {self.name}_inputs there: a tuple of arguments, or a function that "
                "returns one",
            )
        with users_code(f"{self.name}_inputs was called"):
            result = value() if callable(value) else value
        inputs = result if isinstance(result, tuple) else (result,)
        self._check_count(function, inputs)
        return inputs

    def _check_count(self, function: Callable[..., Any], inputs: tuple[Any, ...]) -> None:
        try:
            signature = inspect.signature(function)
        except (TypeError, ValueError):
            return  # a builtin has no signature; its call checks the arguments
        try:
            signature.bind(*inputs)
        except TypeError as error:
            raise WeftError(
                f"{self.path}: {self.name}{signature} does not accept "
                f"its inputs ({plural(len(inputs), 'argument')}): {error}",
                help=f"give {self.name}_inputs one entry for each argument; a tuple holds "
                "arguments, a list is one argument",
            ) from None

    def shardings(self, mesh: Mesh | None) -> Any:
        """The script's shardings of the arguments, if there is a mesh and it defines them."""
        return None if mesh is None else self.beside("shardings")

    def beside(self, what: str) -> Any:
        """`function_inputs`, or else `inputs`."""
        return self.names.get(f"{self.name}_{what}", self.names.get(what))

    def refuse_file(self, file: str | None) -> None:
        """Refuse a file of arguments."""
        if file is not None:
            raise WeftError(
                "a function of a script takes its arguments from the script",
                help=f"define {self.name}_inputs there: the arguments, or a function that "
                "returns them",
            )

    def module(self, mesh: Mesh | None) -> Module:
        """The function's program, on a mesh if there is one."""
        return self._capture(self.inputs(), mesh).module

    def module_and_arrays(self) -> tuple[Module, list[Array]]:
        """The function's program, and the leaves of its arguments."""
        inputs = self.inputs()
        captured = self._capture(inputs, None)
        leaves = zip(flatten(inputs).values, captured.arguments, strict=True)
        return captured.module, [np.asarray(to_physical(value, leaf)) for value, leaf in leaves]

    def _capture(self, inputs: tuple[Any, ...], mesh: Mesh | None) -> Captured:
        function, shardings = self.function, self.shardings(mesh)
        plan = None if mesh is None else self.beside("plan")
        with users_code(f"{self.name} was traced"):
            return capture(function, inputs, mesh=mesh, in_shardings=shardings, plan=plan)


def is_script(text: str) -> bool:
    """Whether this names a script, with or without a function."""
    return _SCRIPT.fullmatch(text) is not None


def load_script(text: str) -> Script:
    """Execute a script and find the function."""
    match = _SCRIPT.fullmatch(text)
    if match is None:
        raise WeftError(
            f"{text} is not a function of a script",
            help="name a function or module of a script and its arguments: script.py:function",
        )
    path, name = match[1], match[2]
    _check_file(path)
    if not (name or "").isidentifier():
        raise _unnamed(path, name)
    return Script(path, name, run_script(path))


def run_script(path: str) -> dict[str, Any]:
    """Execute a script and return its namespace."""
    _check_file(path)
    sys.path.insert(0, str(Path(path).resolve().parent))
    try:
        with users_code(f"{path} was loaded"):
            # Not "__main__": what is under that guard must not run.
            return runpy.run_path(path, run_name="weft_run")
    finally:
        sys.path.pop(0)


def _check_file(path: str) -> None:
    if not Path(path).is_file():
        reason = "it is a folder" if Path(path).is_dir() else "no such file"
        raise WeftError(f"cannot read {path}: {reason}", help="give the path of a script")


def _unnamed(path: str, name: str | None) -> WeftError:
    """The error for a script without a function name, with the functions that it has."""
    known = functions_in(path)
    example = known[0] if known else "function"
    listed = f"; it has {', '.join(known)}" if known else ""
    if name:
        message = f"{name!r} is not a name of a function of {path}"
    else:
        message = f"{path} is a script: name one of its functions"
    return WeftError(message, help=f"write {path}:{example}{listed}")


def functions_in(path: str) -> list[str]:
    """The functions that a script defines, those with inputs first; the script is not run."""
    try:
        body = ast.parse(Path(path).read_bytes(), path).body
    except (SyntaxError, ValueError, OSError):
        return []
    defined = [s.name for s in body if isinstance(s, ast.FunctionDef) and s.name[0] != "_"]
    assigned = {
        target.id
        for s in body
        if isinstance(s, ast.Assign)
        for target in s.targets
        if isinstance(target, ast.Name)
    }
    every = dict.fromkeys([*defined, *sorted(assigned)])
    given = [name for name in every if f"{name}_inputs" in every]
    makers = {f"{name}_{what}" for name in every for what in ("inputs", "shardings")}
    makers |= {"inputs", "shardings", "main"}
    return [*given, *(name for name in defined if name not in {*given, *makers})]


# Exceptions of the user's code


@contextmanager
def users_code(doing: str) -> Iterator[None]:
    """Run the user's code; its exceptions become errors at the user's own line."""
    try:
        yield
    except WeftError:
        raise
    except SystemExit as ended:
        raise WeftError(
            f"the script ended with exit status {ended.code or 0} while {doing}",
            help='put what only runs as a program under `if __name__ == "__main__":`',
        ) from None
    except Exception as error:  # users' code may raise anything
        located = _user_error(error, doing)
        if located is None:
            raise
        raise located from error


def _user_error(error: Exception, doing: str) -> WeftError | None:
    """An exception as an error at the user's innermost line; None if Weft raised it."""
    if isinstance(error, SyntaxError) and error.filename and error.lineno:
        frames: list[SourceRange] | None = [(error.filename, error.lineno, error.offset or 1)]
    else:
        frames = _users_frames(error)
    if frames is None:
        return None
    text = str(error).strip().splitlines()
    lines = [*text[:_MESSAGE_LINES], *(["..."] if len(text) > _MESSAGE_LINES else [])]
    message = f"{type(error).__name__}: " + "\n".join(lines)
    places = [Location(f'"{escape(file)}":{line}:{column}') for file, line, column in frames]
    where = " at that line" if places else ""
    return WeftError(
        message.rstrip(": "),
        help=f"it was raised while {doing}; correct the script{where}",
        loc=fuse(*places),
    )


def _users_frames(error: BaseException) -> list[SourceRange] | None:
    """The user's frames of an exception, innermost first.

    None if Weft itself failed, not Python or JAX on behalf of the user.
    """
    frames = traceback.extract_tb(error.__traceback__)
    ours = [n for n, frame in enumerate(frames) if frame.filename.startswith(_WEFT)]
    below = frames[ours[-1] + 1 :] if ours else frames
    user_frames = [
        (frame.filename, frame.lineno, (frame.colno or 0) + 1)
        for frame in reversed(below)
        if frame.lineno is not None and not frame.filename.startswith(("<", *_LIBRARIES))
    ]
    # JAX filters its own frames from tracebacks: then Weft's call of JAX is the last frame.
    called = below[0].filename if below else frames[-1].filename
    return user_frames if user_frames or called in _CALLERS or _JAX in called else None
