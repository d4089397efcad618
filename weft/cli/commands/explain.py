"""`weft explain`: every collective of a program, its cause, and advice that was tried."""

from __future__ import annotations

import argparse

from weft.advise import TRIES, explain, explained_text
from weft.cli.parser import Subparsers, command, natural
from weft.cli.passes import add_machine
from weft.cli.program import add_program, captured_program
from weft.cli.screen import print_json, print_text, width, working
from weft.machine import machine


def add(commands: Subparsers) -> None:
    """Add the command."""
    parser = command(
        commands,
        run,
        "explain",
        "Explain every collective of a program on a machine: what is sent, how long it takes and "
        "whether compute waits, the line and the reason, and which change of the annotations "
        "would remove it. Each change was tried: its gain is predicted. (`weft why` explains "
        "shardings.)",
        "weft explain examples/llama.py:loss --mesh data=2,model=4 --machine 8xh100",
    )
    add_program(parser)
    add_machine(parser)
    parser.add_argument(
        "--tries",
        type=natural,
        default=TRIES,
        metavar="N",
        help=f"changes of annotations to try; 0 for no advice (default: {TRIES})",
    )
    parser.add_argument("--json", action="store_true", help="print the explanation as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Explain the program, and print the table."""
    chosen = machine(arguments.machine)
    with working(f"explaining {arguments.program}"):
        module = captured_program(arguments.program, arguments.mesh)
        explained = explain(module, chosen, tries=arguments.tries)
    if arguments.json:
        print_json(explained.as_json())
    else:
        print_text(explained_text(explained, width()))
    return 0
