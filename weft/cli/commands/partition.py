"""`weft partition`: the program of one device, with its collectives."""

from __future__ import annotations

import argparse
from dataclasses import replace

from weft.capture import normalize
from weft.cli.files import add_out, put_out
from weft.cli.parser import Subparsers, command
from weft.cli.program import add_program, read_program
from weft.cli.rules import add_rules, read_rules
from weft.cli.screen import plural, working
from weft.cost.sent import bytes_sent, total_sent
from weft.ir.module import Module
from weft.machine import bytes_text
from weft.ops.control import Call
from weft.partition import partition
from weft.partition.expand_groups import expand_groups
from weft.shard import Rules, shard


def add(commands: Subparsers) -> None:
    """Add the command."""
    parser = command(
        commands,
        run,
        "partition",
        "Rewrite a program for one device of a mesh, with the collectives it needs.",
        "weft partition examples/llama.py:loss --mesh data=2,model=4 -o local.mlir",
    )
    add_program(parser)
    add_rules(parser)
    parser.add_argument(
        "--expand-groups",
        action="store_true",
        help="write groups as lists of devices and our own ops as plain StableHLO, as XLA wants",
    )
    add_out(parser)


def run(arguments: argparse.Namespace) -> int:
    """Partition the program, and print it or write it."""
    module = read_program(arguments.program, arguments.mesh)
    with working(f"partitioning {arguments.program}"):
        local = partitioned(module, read_rules(arguments.rules))
    text = (expand_groups(local) if arguments.expand_groups else local).text()
    put_out(arguments, text, summary(local))
    return 0


def partitioned(module: Module, rules: Rules) -> Module:
    """The local program of every function, also of those without callers, by name."""
    module = normalize(module, shard)
    called = {node.op.callee for node in module.nodes() if isinstance(node.op, Call)}
    seen = {
        name: replace(f, visibility=f.visibility if name in called else None)
        for name, f in module.functions.items()
    }
    sharded = shard(replace(module, functions=seen), rules=rules, pads="named")
    local = partition(sharded, rules)
    functions = dict(local.functions)
    for name, function in module.functions.items():
        if name in functions:
            functions[name] = replace(functions[name], visibility=function.visibility)
    return replace(local, functions={n: functions[n] for n in seen if n in functions} | functions)


def summary(local: Module) -> list[tuple[str, str]]:
    """Counts of the local program, one per line."""
    lines = []
    for name, mesh in local.meshes.items():
        axes = ", ".join(f"{axis}={size}" for axis, size in mesh.axes)
        lines.append(("mesh", f"@{name}: {axes or 'no axes'} ({plural(mesh.size, 'device')})"))
    lines.append(("nodes", f"{sum(1 for _ in local.nodes()):,}"))
    for name, function in local.functions.items():
        if function.visibility != "private":
            rows = bytes_sent(local, name)
            count = plural(sum(row.count for row in rows), "collective")
            lines.append(
                (f"@{name}", f"{count}, {bytes_text(round(total_sent(rows)))} sent a device")
            )
    return lines
