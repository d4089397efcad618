"""Explanations of collectives, printed when JAX compiles a program."""

from __future__ import annotations

import sys

from weft.cost.sent import total_sent
from weft.cost.sent_table import sent_by_line, sent_text
from weft.machine import bytes_text
from weft.pipeline import Program


def explain(program: Program, devices: int, *, also_nothing: bool) -> None:
    """Print a program's collectives with source lines, or, if requested, that there are none."""
    prefix = f"weft: {program.module.name or 'main'} on {devices} devices"
    rows = sent_by_line(program.module)
    if rows:
        sent = bytes_text(round(total_sent(rows)))
        print(f"{prefix}: each sends {sent}\n{sent_text(rows)}", file=sys.stderr, flush=True)
    elif also_nothing and devices > 1:
        print(f"{prefix} sends nothing", file=sys.stderr, flush=True)
