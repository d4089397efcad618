"""`weft calibrate`: measure this computer and write its machine file."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable
from pathlib import Path

from weft.cli.calibration import (
    Measurement,
    is_busy,
    machine_text,
    measurements,
    overhead_measurements,
)
from weft.cli.files import write
from weft.cli.gpu_calibration import gpu_measurements
from weft.cli.parser import Subparsers, command
from weft.cli.screen import print_json, print_text, working
from weft.errors import WeftError
from weft.machine import machine, user_folder
from weft.machine.here import gpus, known_machine, memory_here, processor_here


def add(commands: Subparsers) -> None:
    """Add the command."""
    parser = command(
        commands,
        run,
        "calibrate",
        "Measure this computer with Weft's own kernels (products by element type, bandwidth, "
        "launches) and write its machine file, which is the machine `host` from then on; with "
        "--gpu that of its GPU, which is the machine of that name.",
        "weft calibrate -o host.toml",
    )
    parser.add_argument("--gpu", action="store_true", help="measure the GPU, by the triton target")
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
    base, about = _gpu_here() if arguments.gpu else ("host", _about_host())
    out = Path(arguments.out) if arguments.out else default_file(base)
    busy = not arguments.gpu and is_busy()
    measure = gpu_measurements if arguments.gpu else measurements
    out.parent.mkdir(parents=True, exist_ok=True)
    with working("calibrating"):
        measured = _shown(measure(arguments.seconds), arguments.json)
        if not arguments.gpu:  # they are fitted to what exceeds the rates that were measured
            write(out, machine_text(measured, about, base))
            rates = machine(str(out.resolve()))
            measured += _shown(overhead_measurements(rates, arguments.seconds), arguments.json)
    if not arguments.gpu and (size := memory_here()):
        measured.append(Measurement("device.memory", size, "as the system says", ""))
    measured.sort(key=lambda one: one.key)
    write(out, machine_text(measured, about, base))
    machine(str(out.resolve()))  # what was written can be read
    if arguments.json:
        numbers = {one.key: one.value for one in measured}
        print_json({"written": str(out), "busy": busy, "numbers": numbers})
        return 0
    if busy:
        print_text(
            "other processes use the cores, so these rates are too low: calibrate again when idle"
        )
    print_text(f"written to {out}")
    return 0


def _shown(measured: Iterable[Measurement], quietly: bool) -> list[Measurement]:
    """The measurements, each shown as it comes."""
    shown = []
    for one in measured:
        shown.append(one)
        if not quietly:
            print(f"{one.key:22} {one.text}", flush=True)
    return shown


def _about_host() -> str:
    return f"virtual devices on {processor_here()}, {os.cpu_count()} cores"


def _gpu_here() -> tuple[str, str]:
    """The known machine that the GPU is one of, and its name."""
    devices, notes = gpus()
    if not devices:
        raise WeftError("there is no GPU to measure", help="; ".join(notes))
    known = known_machine(devices[0])
    if known is None:
        raise WeftError(
            f"{devices[0].name} is not among the known machines",
            help="write a file for it, based_on the nearest: docs/machines.md",
        )
    return known, f"{devices[0].name}, as calibrated"


def default_file(name: str = "host") -> Path:
    """The user's own machine of a name."""
    folder = user_folder()
    if folder is None:
        raise WeftError("this user has no home folder", help=f"name a file: -o {name}.toml")
    return folder / f"{name}.toml"
