"""The command `weft`."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence

import weft
from weft.cli.commands import (
    calibrate,
    check,
    compare,
    cost,
    evaluate,
    explain,
    kernels,
    launch,
    machine,
    machines,
    opt,
    partition,
    plan,
    predict,
    profile,
    report,
    run,
    serve_devices,
    shard,
    show,
    why,
    zoo,
)
from weft.cli.commands import compile as compile_
from weft.cli.commands.installation import cache, conformance, doctor, knobs, ops
from weft.cli.parser import Parser
from weft.cli.screen import plain_warnings, print_error
from weft.errors import WeftError

COMMANDS = (
    run,
    evaluate,
    check,
    shard,
    partition,
    opt,
    compile_,
    show,
    why,
    explain,
    predict,
    profile,
    kernels,
    plan,
    report,
    machines,
    machine,
    calibrate,
    cost,
    launch,
    serve_devices,
    ops,
    cache,
    knobs,
    doctor,
    conformance,
    compare,
    zoo,
)


_OWN_OPTIONS = ("-h", "--help", "--version")  # all other options belong to a command and follow it


def make_parser() -> Parser:
    """The parser of the whole command line."""
    parser = Parser(
        prog="weft",
        description="Compile and run PyTorch and JAX programs on many devices.",
        example="weft eval examples/mlp.mlir",
    )
    parser.add_argument("--version", action="version", version=f"weft {weft.__version__}")
    commands = parser.add_subparsers(
        title="commands", metavar="COMMAND", dest="command", required=True, parser_class=Parser
    )
    for module in COMMANDS:
        module.add(commands)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit status."""
    line = sys.argv[1:] if argv is None else argv
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # an ASCII terminal shows ? for ✓ and …
    try:
        parser = make_parser()
        if line and line[0].startswith("-") and line[0] not in _OWN_OPTIONS:
            parser.error(f"unrecognized arguments: {line[0]}")
        arguments, unknown = parser.parse_known_args(line)
        if unknown:
            before = line.index(unknown[0]) < line.index(arguments.command)
            chosen = parser if before else arguments.parser
            chosen.error(f"unrecognized arguments: {' '.join(unknown)}")
        with plain_warnings():
            status = arguments.run(arguments)
        assert isinstance(status, int)
        sys.stdout.flush()
        return status
    except WeftError as error:
        print_error(error)
        return 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader has closed the pipe (`weft ops | head`); the flush at exit must not fail,
        # either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
