"""Text tables that fit a width: numbers stay whole, texts are truncated or wrapped."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from typing import Literal

from weft.records import dataclass

_GAP = "  "


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its heading, alignment, and way to shrink if the table is too wide."""

    head: str = ""
    right: bool = False
    fit: Literal["whole", "cut", "wrap"] = "whole"
    least: int = 12  # the minimum width of a column that shrinks


@dataclass(frozen=True, slots=True)
class TableLine:
    """A line of a table: padded cells, the row (None for headings), and the line's number in it."""

    cells: tuple[str, ...]
    row: int | None
    nth: int = 0

    def __str__(self) -> str:
        return _GAP.join(self.cells).rstrip()


def table_text(
    columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int | None = None
) -> str:
    """A table as text, within `width` characters if the fixed columns allow it."""
    return "\n".join(map(str, table_lines(columns, rows, width)))


def table_lines(
    columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int | None = None
) -> Iterator[TableLine]:
    """The lines of a table; a row has several for multi-line or wrapped cells."""
    heads = tuple([column.head for column in columns])
    widths = _widths(columns, [heads, *rows], width)
    for number, cells in enumerate([heads, *rows]):
        if number == 0 and not any(heads):
            continue
        parts = [_fitted(*given) for given in zip(cells, columns, widths, strict=True)]
        for nth in range(max(map(len, parts))):
            line = tuple(
                [
                    _aligned(part[nth] if nth < len(part) else "", column, wide)
                    for part, column, wide in zip(parts, columns, widths, strict=True)
                ]
            )
            yield TableLine(line, number - 1 if number else None, nth)


def _widths(
    columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int | None
) -> list[int]:
    """The width of every column; of those that can shrink, the widest does first."""
    widths = [max(map(_width, cells)) for cells in zip(*rows, strict=True)]
    if width is None:
        return widths
    while sum(widths) + len(_GAP) * (len(widths) - 1) > width:
        gives_way = [
            n for n, c in enumerate(columns) if c.fit != "whole" and widths[n] > c.least
        ]  # fmt: skip
        if not gives_way:
            break
        widths[max(gives_way, key=lambda n: widths[n])] -= 1
    return widths


def _width(cell: str) -> int:
    return max(map(len, cell.split("\n")))


def _fitted(cell: str, column: Column, width: int) -> list[str]:
    """A cell's lines, truncated or wrapped to the column."""
    if column.fit != "wrap":
        return [cut(line, width) for line in cell.split("\n")]
    return [
        part
        for line in cell.split("\n")
        for part in textwrap.wrap(
            line,
            max(width, 1),  # of a column without any text
            subsequent_indent=" " * (len(line) - len(line.lstrip())),
            break_on_hyphens=False,
        )
        or [""]
    ]


def _aligned(cell: str, column: Column, width: int) -> str:
    return cell.rjust(width) if column.right else cell.ljust(width)


def cut(text: str, width: int) -> str:
    """A text truncated to a width."""
    return text if len(text) <= width else f"{text[: width - 1]}…"
