"""What devices send each other in a program that JAX has compiled, told as it is compiled."""

from __future__ import annotations

import sys

from weft.cost.sent import total_sent
from weft.cost.sent_table import sent_by_line, sent_text
from weft.machine import bytes_text
from weft.pipeline import Program


def explain(program: Program, devices: int) -> None:
    """Print the collectives of a program with the user's lines; of one device there are none."""
    if devices == 1:
        return
    name = program.module.name or "main"
    rows = sent_by_line(program.module)
    if not rows:
        told = f"weft: {name} on {devices} devices sends nothing"
    else:
        sent = bytes_text(round(total_sent(rows)))
        told = f"weft: {name} on {devices} devices: each sends {sent}\n{sent_text(rows)}"
    print(told, file=sys.stderr, flush=True)
