"""`weft machine`: the machine that this is, or one of those that are known."""

from __future__ import annotations

import argparse
from dataclasses import asdict

from weft.cli.commands.machines import machine_json, show
from weft.cli.parser import Subparsers, command
from weft.cli.screen import plural, print_json, print_text
from weft.machine import bytes_text, machine
from weft.machine.here import DetectedMachine, machine_here


def add(commands: Subparsers) -> None:
    """Add the command."""
    parser = command(
        commands,
        run,
        "machine",
        "Show all numbers of a machine, each with where it comes from; with --here those of this "
        "computer, whose GPUs NVML lists.",
        "weft machine --here",
    )
    parser.add_argument(
        "name", nargs="?", metavar="MACHINE", help="a name, 8xh100, 32x(8xh200)@400G or a TOML file"
    )
    parser.add_argument("--here", action="store_true", help="the machine that this is")
    parser.add_argument("--json", action="store_true", help="print it as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Show the machine."""
    if arguments.here == (arguments.name is not None):
        arguments.parser.error("give a machine's name, or --here for this one")
    if not arguments.here:
        show(machine(arguments.name), as_json=arguments.json)
        return 0
    here = machine_here()
    if arguments.json:
        gpus = [asdict(device) for device in here.devices]
        print_json(machine_json(here.machine) | {"gpus": gpus, "notes": list(here.notes)})
        return 0
    show_here(here)
    return 0


def show_here(here: DetectedMachine) -> None:
    """The properties detected here, and a machine with them."""
    for note in here.notes:
        print_text(note)
    if here.devices:
        first, count = here.devices[0], plural(len(here.devices), "GPU")
        print_text(f"{count}: {first.name}, {bytes_text(first.memory)}, sm {first.capability}")
    print()
    show(here.machine, as_json=False)
