"""Explanations of collectives, printed when JAX compiles a program."""

from __future__ import annotations

import sys

from weft.advise import explain as explain_module
from weft.advise import explained_text
from weft.cost.sent import total_sent
from weft.cost.sent_table import sent_by_line
from weft.machine import HOST, Machine, bytes_text
from weft.machine import machine as machine_named
from weft.pipeline import STAGES, Program

_TRIES = 24  # a program of many waits for its compilation


def explain(
    program: Program, devices: int, machine: Machine | None = None, *, also_nothing: bool
) -> None:
    """Print a program's collectives, causes and advice, or, if requested, that there are none."""
    prefix = f"weft: {program.module.name or 'main'} on {devices} devices"
    rows = sent_by_line(program.module)
    if not rows:
        if also_nothing and devices > 1:
            print(f"{prefix} sends nothing", file=sys.stderr, flush=True)
        return
    sent = bytes_text(round(total_sent(rows)))
    captured = program.stages[STAGES[0]]
    found = explain_module(captured, machine or machine_named(HOST.name), tries=_TRIES)
    print(f"{prefix}: each sends {sent}\n{explained_text(found)}", file=sys.stderr, flush=True)
