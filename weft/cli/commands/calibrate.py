"""`weft calibrate`: measure this computer and write its machine file."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from weft.cli.calibration import Measurement, is_busy, machine_text, measurements
from weft.cli.files import write
from weft.cli.parser import Subparsers, command
from weft.cli.screen import print_json, print_text, working
from weft.errors import WeftError
from weft.machine import machine, user_folder
from weft.machine.here import memory_here, processor_here


def add(commands: Subparsers) -> None:
    """Add the command."""
    parser = command(
        commands,
        run,
        "calibrate",
        "Measure this computer with Weft's own kernels (products by element type, bandwidth, "
        "launches) and write its machine file, which is the machine `host` from then on.",
        "weft calibrate -o host.toml",
    )
    parser.add_argument(
        "-o", "--out", metavar="FILE.toml", help="the file to write (default: the user's host.toml)"
    )
    parser.add_argument(
        "--seconds",
        metavar="S",
        type=float,
        default=0.5,
        help="how long to measure each number (default: 0.5)",
    )
    parser.add_argument("--json", action="store_true", help="print the numbers as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Measure, show each number as it comes, write the file."""
    out = Path(arguments.out) if arguments.out else default_file()
    busy = is_busy()
    found: list[Measurement] = []
    with working("calibrating"):
        for one in measurements(arguments.seconds):
            found.append(one)
            if not arguments.json:
                print(f"{one.key:22} {one.text}", flush=True)
    if size := memory_here():
        found.append(Measurement("device.memory", size, "as the system says", ""))
    found.sort(key=lambda one: one.key)
    about = f"virtual devices on {processor_here()}, {os.cpu_count()} cores"
    out.parent.mkdir(parents=True, exist_ok=True)
    write(out, machine_text(found, about))
    machine(str(out.resolve()))  # what was written can be read
    if arguments.json:
        numbers = {one.key: one.value for one in found}
        print_json({"written": str(out), "busy": busy, "numbers": numbers})
        return 0
    if busy:
        print_text(
            "the computer is busy, so these rates are too low: calibrate again when it rests"
        )
    print_text(f"written to {out}")
    return 0


def default_file() -> Path:
    """The user's own `host`."""
    folder = user_folder()
    if folder is None:
        raise WeftError("this user has no home folder", help="name a file: -o host.toml")
    return folder / "host.toml"
