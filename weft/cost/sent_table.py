"""The table of a program's collectives: what is sent, how often, and which line causes it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace

from weft.cost.sent import Sent, bytes_sent, total_sent
from weft.ir.module import Module
from weft.machine import bytes_text

HEADS = ("collective", "over", "times", "sent each", "sent in all", "line")
_LEAST_LINE = 16  # characters that are left of a source line on a narrow screen
TO_THE_RIGHT = frozenset({2, 3, 4})  # the columns of numbers


def sent_by_line(module: Module, func: str = "main") -> list[Sent]:
    """What devices send each other: one row for each kind, axes, size and source line."""
    rows: dict[tuple[object, ...], Sent] = {}
    for row in bytes_sent(module, func):
        line = row.loc.line or row.loc
        key = (row.name, row.over, row.devices, row.bytes, line)
        count = rows[key].count if key in rows else 0
        rows[key] = replace(rows.get(key, row), count=count + row.count)
    return [*rows.values()]


def cells(rows: Sequence[Sent]) -> list[tuple[str, ...]]:
    """The lines of the table, the largest first, and the line of all of them together."""
    shown = [
        (
            row.name.partition(".")[2],
            row.over,
            f"{row.count:,}",
            bytes_text(round(row.bytes)),
            bytes_text(round(row.total)),
            row.loc.describe().removeprefix(f"{os.getcwd()}/"),
        )
        for row in sorted(rows, key=lambda r: -r.total)
    ]
    count = f"{sum(row.count for row in rows):,}"
    return [*shown, ("in all", "", count, "", bytes_text(round(total_sent(rows))), "")]


def sent_text(rows: Sequence[Sent], width: int | None = None) -> str:
    """The table as text in columns; source lines, the last of them, are cut at a width."""
    lines = [HEADS, *cells(rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    shown = [_line(line, widths) for line in lines]
    if width is not None:
        least = sum(widths[:-1]) + 2 * len(widths) + _LEAST_LINE
        shown = [_cut(line, max(width, least)) for line in shown]
    return "\n".join(shown)


def _cut(line: str, width: int) -> str:
    return line if len(line) <= width else f"{line[: width - 1]}…"


def _line(line: Sequence[str], widths: Sequence[int]) -> str:
    parts = [
        text.rjust(width) if n in TO_THE_RIGHT else text.ljust(width)
        for n, (text, width) in enumerate(zip(line, widths, strict=True))
    ]
    return "  ".join(parts).rstrip()
