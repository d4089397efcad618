"""`weft report`: one page with a program's mesh, tensors, collectives, timeline and memory."""

from __future__ import annotations

import argparse

from weft.cli.parser import Subparsers, command
from weft.cli.passes import add_machine
from weft.cli.program import add_program, captured_program
from weft.cli.rules import add_rules, read_rules
from weft.cli.screen import print_json, print_labelled, working
from weft.machine import bytes_text, machine, seconds_text
from weft.reporting import write_report


def add(commands: Subparsers) -> None:
    """Add the command."""
    parser = command(
        commands,
        run,
        "report",
        "Write a page that shows a program on a machine: its mesh, the pieces of each tensor, its "
        "collectives with their reasons, a timeline, memory over time, and other machines. The "
        "page is one file and opens offline.",
        "weft report examples/llama.py:loss --mesh data=8 --machine 8xh100 -o out.html",
    )
    add_program(parser)
    add_rules(parser)
    add_machine(parser)
    parser.add_argument(
        "--whatif",
        metavar="MACHINE",
        action="append",
        help="another machine to predict the step on; may be repeated (default: some GPUs)",
    )
    parser.add_argument(
        "-o", "--out", metavar="OUT.html", default="report.html", help="(default: report.html)"
    )
    parser.add_argument(
        "--timeline", metavar="OUT.json", help="write the timeline for Perfetto or chrome://tracing"
    )
    parser.add_argument("--json", action="store_true", help="print the summary as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Write the page, and print a summary."""
    the_machine = machine(arguments.machine)
    others = None if arguments.whatif is None else [machine(name) for name in arguments.whatif]
    with working(f"reading {arguments.program}"):
        module = captured_program(arguments.program, arguments.mesh)
    name = arguments.program.rpartition(":")[2].rpartition("/")[2]
    with working(f"predicting {arguments.program}"):
        report = write_report(
            arguments.out, module, the_machine, name=name, others=others,
            rules=read_rules(arguments.rules),
        )  # fmt: skip
    if arguments.timeline:
        report.timeline.save(arguments.timeline)
    if arguments.json:
        print_json(report.as_json() | {"written": arguments.out})
        return 0
    lines = [
        ("program", f"{report.name} on {the_machine.name}"),
        ("step", seconds_text(report.seconds)),
        ("collectives", f"{len(report.timeline.collectives())} in the timeline"),
        (
            "memory",
            f"{bytes_text(report.memory.peak)} of {bytes_text(the_machine.memory)} a device",
        ),
    ]
    written = [arguments.out, *([arguments.timeline] if arguments.timeline else [])]
    print_labelled([*lines, *[("written", path) for path in written]])
    return 0
