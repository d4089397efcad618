"""Value lookup by a user's name for it: `%12`, a source line, a tracer's name."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator

from weft.errors import WeftError
from weft.ir.location import Location
from weft.ir.module import Function, Module, Value, walk
from weft.ir.write import value_names

_NUMBERED = re.compile(r"%(?:arg)?\d+(?:#\d+)?")
_LINE = re.compile(r"(.+):(\d+)")


def lookup(module: Module, what: str, function: str | None = None) -> tuple[Value, ...]:
    """The values of a name, in program order; an error with the known names if none."""
    if not what.strip():
        raise WeftError("missing value", help="give %12 or %arg0, a line or a tracer's name")
    if _NUMBERED.fullmatch(what):
        return _by_number(_function(module, function), what)
    if (match := _LINE.fullmatch(what)) and (found := _by_line(module, match[1], int(match[2]))):
        return found
    return _by_name(module, what)


def _function(module: Module, name: str | None) -> Function:
    if name is not None:
        return module.function(name)
    return module.functions.get("main") or next(iter(module.functions.values()))


def _by_number(function: Function, what: str) -> tuple[Value, ...]:
    names = value_names(function)
    found = tuple(v for v, name in names.items() if what in (name, name.partition("#")[0]))
    if found:
        return found
    args = [n for n in names.values() if n.startswith("%arg")]
    results = [n for n in names.values() if not n.startswith("%arg")]
    known = [f"{part[0]} to {part[-1]}" for part in (args, results) if part]
    raise WeftError(
        f"@{function.name} has no value {what}",
        help=f"known: {', '.join(known) or 'none'}, as `weft.parse(FILE).text()` numbers them",
    )


def _places(module: Module) -> Iterator[tuple[Value, Location]]:
    for function in module.functions.values():
        yield from zip(function.body.args, function.body.arg_locs, strict=True)
        for node in walk(function.body):
            for value in node.results:
                yield value, node.loc


def _by_line(module: Module, file: str, line: int) -> tuple[Value, ...]:
    """Values of a line, or else those of functions called there."""
    inner: list[Value] = []
    outer: list[Value] = []
    for value, loc in _places(module):
        frames = [
            n
            for n, (name, number, _) in enumerate(loc.frames)
            if number == line and (name == file or name.endswith(f"/{file}"))
        ]
        if frames:
            (inner if frames[0] == 0 else outer).append(value)
    return tuple(inner or outer)


def _by_name(module: Module, what: str) -> tuple[Value, ...]:
    """Values whose tracer's name is this, ends with it, or contains it, whichever comes first."""
    named = [(value, loc.name or "") for value, loc in _places(module)]
    for fits in (str.__eq__, _ends_with, str.__contains__):
        found = tuple(value for value, name in named if name and fits(name, what))
        if found:
            return found
    names = list(dict.fromkeys(name for _, name in named if name))
    near = difflib.get_close_matches(what, names, n=3, cutoff=0.3)
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    raise WeftError(
        f"unknown value {what!r}",
        help=f"{hint}give %12 or %arg0, a line such as model.py:41, or a name of the tracer",
    )


def _ends_with(name: str, what: str) -> bool:
    return name.endswith(f"/{what}")
