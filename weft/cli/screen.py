"""Terminal output: tables, errors with their source line, progress, readable numbers."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import linecache
import os
import shutil
import sys
import textwrap
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TextIO, TypeAlias

from weft.columns import Column, table_lines
from weft.errors import WeftError, WeftWarning

_PIPED_WIDTH = 120  # of tables in a pipe or a log file; other text is not wrapped there
StyledText: TypeAlias = tuple[str, str]  # a text and its style
_LABELLED = (Column(), Column(fit="wrap", least=24))


def has_rich() -> bool:
    """Whether the extra `cli` is installed, for colours and progress bars."""
    return importlib.util.find_spec("rich") is not None


def has_colours(stream: TextIO) -> bool:
    """Whether to use colours: on a terminal, unless NO_COLOR is set."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return stream.isatty() or bool(os.environ.get("FORCE_COLOR"))


def is_piped(stream: TextIO) -> bool:
    """Whether a stream has no width: a pipe or a file, without COLUMNS."""
    return not stream.isatty() and not os.environ.get("COLUMNS", "").isdecimal()


def width() -> int:
    """The width of a table on standard output."""
    return _PIPED_WIDTH if is_piped(sys.stdout) else shutil.get_terminal_size((80, 24)).columns


def print_spans(lines: Iterable[Sequence[StyledText]]) -> None:
    """Print lines of styled texts, without wrapping."""
    if not has_rich() or not has_colours(sys.stdout):
        print("\n".join("".join(text for text, _ in line).rstrip() for line in lines))
        return
    from rich.console import Console
    from rich.text import Text

    screen = Console(highlight=False, soft_wrap=True)
    for line in lines:
        screen.print(Text.assemble(*line))


def print_text(text: str, style: str = "", mark: StyledText | None = None) -> None:
    """Print sentences, wrapped at words on a terminal, with a mark before the first."""
    head = [] if mark is None else [(f"{mark[0]} ", mark[1])]
    first, *rest = _wrapped(text, sum(len(text) for text, _ in head))
    print_spans([[*head, (first, style)], *[[(line, style)] for line in rest]])


def print_check(works: bool, text: str) -> None:
    """Print a sentence after a green ✓ or a red ✗."""
    print_text(text, mark=("✓", "green") if works else ("✗", "red"))


def _wrapped(text: str, indent: int = 0) -> list[str]:
    """Lines wrapped to the terminal; long words (paths) stay whole, for copying."""
    lines = text.split("\n")
    if is_piped(sys.stdout):
        return lines
    return [
        part
        for n, line in enumerate(lines)
        for part in textwrap.wrap(
            line,
            width() if n else width() - indent,
            subsequent_indent=" " * (len(line) - len(line.lstrip()) + 2),
            break_long_words=False,
            break_on_hyphens=False,
            drop_whitespace=True,
        )
        or [""]
    ]


def print_table(
    columns: Sequence[Column],
    rows: Sequence[Sequence[str]],
    style: Callable[[int, int, int], str] = lambda row, column, nth: "",
) -> None:
    """Print a table that fits the terminal; `style(row, column, nth line of the cell)`."""
    print_spans(
        [
            (f"{cell}  ", "dim" if line.row is None else style(line.row, number, line.nth))
            for number, cell in enumerate(line.cells)
        ]
        for line in table_lines(columns, rows, width())
    )


def print_labelled(lines: Iterable[tuple[str, str]]) -> None:
    """Print pairs of label and text such as `nodes  11`, texts wrapped beside their label."""
    print_table(_LABELLED, [*lines], lambda row, column, nth: "" if column else "dim")


@contextlib.contextmanager
def working(on: str) -> Iterator[None]:
    """Show a spinner with the elapsed time on standard error, if that is a terminal."""
    if not sys.stderr.isatty() or not has_rich():
        yield
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    screen = Console(stderr=True)
    with Progress(*columns, console=screen, transient=True, redirect_stdout=False) as progress:
        progress.add_task(on, total=None)
        yield


def print_json(value: object) -> None:
    """Print one JSON document on standard output."""
    print(json.dumps(value, indent=2))


def error_text(error: WeftError) -> str:
    """An error with its source line and a caret under the column."""
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
    """Print an error on standard error, its first word in red on a terminal."""
    text = error_text(error)
    if has_colours(sys.stderr):
        text = text.replace("error:", "\033[1;31merror:\033[0m", 1)
        head, found, tail = text.rpartition("\nhelp:")
        text = f"{head}\n\033[1;32mhelp:\033[0m{tail}" if found else text
    print(text, file=sys.stderr)


@contextlib.contextmanager
def plain_warnings() -> Iterator[None]:
    """Show Weft's own warnings as one line each, without the source line of the warning call."""
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


def first_paragraph(thing: object) -> str:
    """The first paragraph of a docstring, as one line."""
    return " ".join((thing.__doc__ or "").partition("\n\n")[0].split())
