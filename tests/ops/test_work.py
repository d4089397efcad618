"""The work of an example of every op, counted: ops that count alike are in one line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from weft.cli.commands.installation.op_examples import example, texts
from weft.cli.commands.installation.ops import work
from weft.ir.module import Node

GOLDEN = Path(__file__).parents[1] / "golden" / "ops" / "work.txt"


def test_work_of_every_op(golden: Callable[[Path, str], None]):
    counted: dict[str, list[str]] = {}
    for name in texts():
        node = example(name)
        if isinstance(node, Node):
            made = work(node)
            line = f"{made.flops} flops, {made.transcendentals} transcendentals, {made.bytes} bytes"
            line += f", {made.sent} sent" if made.sent else ""
            counted.setdefault(line, []).append(name)
    lines = [f"{line}: {' '.join(names)}" for line, names in counted.items()]
    golden(GOLDEN, "\n".join(lines) + "\n")
