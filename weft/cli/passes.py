"""Options of commands that optimize: level, machine, streams, and combining of collectives."""

from __future__ import annotations

import argparse
from typing import cast

from weft.cli.parser import Parser, natural
from weft.machine import HOST, Machine, bytes_of, machine
from weft.ops.elementwise.approximate import APPROXIMABLE
from weft.optimize import LEVELS, Level, PassOptions, given_numbers
from weft.optimize.collectives.combine_collectives import MOST_BYTES

_USUAL = PassOptions()


def add_level(parser: Parser) -> None:
    """Add the options of the level."""
    level = parser.add_mutually_exclusive_group()
    for number, what in LEVELS.items():
        level.add_argument(
            f"-O{number}", dest="level", action="store_const", const=number, help=what
        )


def add_machine(parser: Parser) -> None:
    """The option for the machine that a prediction is for."""
    parser.add_argument(
        "--machine",
        metavar="MACHINE",
        default=HOST.name,
        help="a name of `weft machines`, 8xh100, 32x(8xh200)@400G or a TOML file "
        f"(default: {HOST.name})",
    )


def add_passes(parser: Parser) -> None:
    """Add the options of the passes."""
    add_level(parser)
    parser.add_argument(
        "--machine",
        metavar="MACHINE",
        help="what the program is to run on, which it has to fit: a name of `weft machines`, "
        f"8xh100, 32x(8xh200)@400G or a TOML file (default: {HOST.name}, of any size)",
    )
    parser.add_argument(
        "--memory",
        metavar="80GiB",
        help="refuse a program that needs more than this on a device, with its largest values",
    )
    for name, what in (
        ("compute_streams", "streams that asynchronous work takes in turn at -O2"),
        ("communication_streams", "streams that collectives take at -O2"),
        ("combine_ops", "collectives that are combined into one at most; 0 combines none"),
    ):
        usual = getattr(_USUAL, name)
        option = f"--{name.replace('_', '-')}"
        parser.add_argument(
            option, metavar="N", type=natural, help=f"{what} (default: {usual:,})"
        )  # fmt: skip
    parser.add_argument(
        "--combine-bytes",
        metavar="30MiB",
        help="bytes of collectives that are combined into one at most; 0 combines none "
        f"(default: by the machine, or {MOST_BYTES:,})",
    )


def add_approximate(parser: Parser) -> None:
    """The option for functions that may be approximate."""
    parser.add_argument(
        "--approximate",
        metavar="NAMES",
        default="",
        help="functions of f32 that may err by 2^-13, with commas between them: "
        f"{', '.join(APPROXIMABLE)}",
    )


def chosen_level(arguments: argparse.Namespace) -> Level:
    """The level, 1 by default."""
    return cast(Level, 1 if arguments.level is None else arguments.level)


def chosen_machine(arguments: argparse.Namespace) -> Machine | None:
    """The machine named on the command line, with --memory applied, or None."""
    chosen = machine(arguments.machine) if arguments.machine else None
    if arguments.memory:
        chosen = (chosen or HOST).with_memory(bytes_of(arguments.memory))
    return chosen


def chosen_numbers(arguments: argparse.Namespace) -> dict[str, int]:
    """The numeric options on the command line, as `weft.compile` takes them."""
    size = arguments.combine_bytes
    return given_numbers(
        compute_streams=arguments.compute_streams,
        communication_streams=arguments.communication_streams,
        combine_ops=arguments.combine_ops,
        combine_bytes=None if size is None else bytes_of(size),
    )
