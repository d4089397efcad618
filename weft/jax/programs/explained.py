"""What devices send each other in a program that JAX has compiled, told as it is compiled."""

from __future__ import annotations

import sys

from weft.cost.sent import total_sent
from weft.cost.sent_table import sent_by_line, sent_text
from weft.machine import bytes_text
from weft.pipeline import Program


def explain(program: Program, devices: int, *, also_nothing: bool) -> None:
    """Print the collectives of a program with the user's lines, or, if asked, that it has none."""
    told = f"weft: {program.module.name or 'main'} on {devices} devices"
    rows = sent_by_line(program.module)
    if rows:
        sent = bytes_text(round(total_sent(rows)))
        print(f"{told}: each sends {sent}\n{sent_text(rows)}", file=sys.stderr, flush=True)
    elif also_nothing and devices > 1:
        print(f"{told} sends nothing", file=sys.stderr, flush=True)
