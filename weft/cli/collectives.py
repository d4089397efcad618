"""The table of a program's collectives on the screen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from weft.cost.sent import Sent
from weft.cost.sent_table import HEADS, TO_THE_RIGHT, cells

if TYPE_CHECKING:
    from rich.table import Table


def collectives_table(rows: Sequence[Sent]) -> Table:
    """One row for each kind, axes, size and source line; the largest first."""
    from rich.table import Table
    from rich.text import Text

    table = Table(title="collectives", title_justify="left", box=None, pad_edge=False)
    for n, name in enumerate(HEADS[:-1]):
        table.add_column(name, justify="right" if n in TO_THE_RIGHT else "left")
    table.add_column(HEADS[-1], no_wrap=True, overflow="ellipsis")
    *shown, together = cells(rows)
    for line in shown:
        table.add_row(*line[:-1], Text(line[-1]))  # brackets are no markup
    table.add_section()
    table.add_row(*together)
    return table
