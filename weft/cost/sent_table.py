"""The table of a program's collectives: bytes sent, executions, and the source line."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace

from weft.columns import Column, table_text
from weft.cost.sent import Sent, bytes_sent, total_sent
from weft.ir.module import Module
from weft.machine import bytes_text

COLUMNS = (
    Column("collective"),
    Column("over"),
    Column("times", right=True),
    Column("sent each", right=True),
    Column("sent in all", right=True),
    Column("line", fit="cut", least=16),
)


def sent_by_line(module: Module, func: str = "main") -> list[Sent]:
    """Bytes sent, one row for each kind, axes, size and source line."""
    rows: dict[tuple[object, ...], Sent] = {}
    for row in bytes_sent(module, func):
        line = row.loc.line or row.loc
        key = (row.name, row.over, row.devices, row.bytes, line)
        count = rows[key].count if key in rows else 0
        rows[key] = replace(rows.get(key, row), count=count + row.count)
    return [*rows.values()]


def cells(rows: Sequence[Sent]) -> list[tuple[str, ...]]:
    """The cells of the table, largest rows first, and the row of totals."""
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
    """The table as text in columns; the last column, source lines, is cut at the width."""
    return table_text(COLUMNS, cells(rows), width)
