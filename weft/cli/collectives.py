"""The table of a program's collectives: what is sent, how often, and which line causes it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from weft.cost.sent import Sent
from weft.machine import bytes_text

if TYPE_CHECKING:
    from rich.table import Table


def collectives_table(rows: Sequence[Sent]) -> Table:
    """One row for each kind, axes, size and source line; the largest first."""
    from rich.table import Table
    from rich.text import Text

    table = Table(title="collectives", title_justify="left", box=None, pad_edge=False)
    for name in ("collective", "over"):
        table.add_column(name)
    for name in ("times", "sent each", "sent in all"):
        table.add_column(name, justify="right")
    table.add_column("line", no_wrap=True, overflow="ellipsis")
    for row in sorted(rows, key=lambda r: -r.total):
        table.add_row(
            row.name.partition(".")[2],
            row.over,
            f"{row.count:,}",
            bytes_text(round(row.bytes)),
            bytes_text(round(row.total)),
            Text(row.loc.describe().removeprefix(f"{os.getcwd()}/")),  # brackets are no markup
        )
    total = bytes_text(round(sum(row.total for row in rows)))
    count = f"{sum(row.count for row in rows):,}"
    table.add_section()
    table.add_row("in all", "", count, "", total, "")
    return table
