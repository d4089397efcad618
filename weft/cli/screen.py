"""What commands put on the screen: consoles, errors with the source line, readable numbers."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import linecache
import os
import sys
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from weft.errors import WeftError, WeftWarning, missing_extra

if TYPE_CHECKING:
    from rich.console import Console

_PIPED_WIDTH = 120


def has_rich() -> bool:
    """Whether the extra `cli` is installed."""
    return importlib.util.find_spec("rich") is not None


def console(*, stderr: bool = False) -> Console:
    """A console for tables and colours."""
    if not has_rich():
        raise missing_extra("rich", "cli", "showing this in the terminal (--json does not)")
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    fixed = not stream.isatty() and "COLUMNS" not in os.environ
    return Console(stderr=stderr, highlight=False, width=_PIPED_WIDTH if fixed else None)


def print_text(screen: Console, text: str) -> None:
    """A text as it is: brackets are no markup, and long lines stay whole."""
    screen.print(text, markup=False, highlight=False, soft_wrap=True)


def print_json(value: object) -> None:
    """One JSON document on standard output."""
    print(json.dumps(value, indent=2))


def error_text(error: WeftError) -> str:
    """An error with the source line it points at and a caret under the column."""
    frames = error.loc.frames if error.loc is not None else ()
    if not frames:
        return str(error)
    file, line, column = frames[0]
    source = linecache.getline(file, line).rstrip()
    if not source:
        return str(error)
    number = str(line)
    margin = " " * (len(number) + 1)
    before = source[: column - 1] if column else ""
    caret = "".join("\t" if c == "\t" else " " for c in before) + "^"
    lines = [
        f"error: {error.message}",
        f"{margin[:-1]}--> {file}:{line}:{column}",
        f"{margin}|",
        f"{number} | {source}",
        f"{margin}| {caret if column else ''}".rstrip(),
    ]
    if error.node is not None:
        lines.append(f"{margin}= {error.node}")
    return "\n".join([*lines, f"help: {error.help}"])


def print_error(error: WeftError) -> None:
    """An error on standard error, its first word in red on a terminal."""
    text = error_text(error)
    if sys.stderr.isatty() and "NO_COLOR" not in os.environ:
        text = text.replace("error:", "\033[1;31merror:\033[0m", 1)
        head, found, tail = text.rpartition("\nhelp:")
        text = f"{head}\n\033[1;32mhelp:\033[0m{tail}" if found else text
    print(text, file=sys.stderr)


@contextlib.contextmanager
def plain_warnings() -> Iterator[None]:
    """Show Weft's own warnings as a line each, without the place in the code that raised them."""
    usual = warnings.formatwarning

    def form(message: Any, category: type[Warning], *where: Any, **more: Any) -> str:
        if issubclass(category, WeftWarning):
            return f"warning: {message}\n"
        return usual(message, category, *where, **more)

    warnings.formatwarning = form
    try:
        yield
    finally:
        warnings.formatwarning = usual


def error_json(error: WeftError) -> dict[str, Any]:
    """An error as data."""
    frames = error.loc.frames if error.loc is not None else ()
    place = dict(zip(("file", "line", "column"), frames[0], strict=True)) if frames else {}
    kind = type(error).__name__
    return {"kind": kind, "message": error.message, "help": error.help, "node": error.node} | place


def quantity(number: float, unit: str = "") -> str:
    """`1.5k`, `23M`: a count in three digits."""
    for prefix in ("", "k", "M", "G", "T"):
        if abs(number) < 1000 or prefix == "T":
            shown = f"{number:.3g}" if prefix else f"{number:g}"
            return f"{shown}{prefix}{unit}"
        number /= 1000
    raise AssertionError("unreachable")


def plural(count: int, noun: str) -> str:
    """`1 file`, `2 files`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
