"""The command `weft`."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Sequence

import weft
from weft.cli import (
    cache,
    check,
    conformance,
    evaluate,
    kernels,
    ops,
    opt,
    partition,
    run,
    shard,
    show,
    why,
)
from weft.cli.parser import Parser
from weft.cli.screen import print_error
from weft.errors import WeftError

COMMANDS = (
    run,
    evaluate,
    check,
    shard,
    partition,
    opt,
    show,
    why,
    kernels,
    ops,
    cache,
    conformance,
)


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


def _show_warning(message: Warning | str, *_: object, **__: object) -> None:
    """A warning as a line for people, without the line of ours that warns."""
    print(f"warning: {message}", file=sys.stderr)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit status."""
    line = sys.argv[1:] if argv is None else argv
    try:
        parser = make_parser()
        arguments, unknown = parser.parse_known_args(line)
        if unknown:
            before = line.index(unknown[0]) < line.index(arguments.command)
            chosen = parser if before else arguments.parser
            chosen.error(f"unrecognized arguments: {' '.join(unknown)}")
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
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
        # Nobody reads on (`weft ops | head`); nothing more may be written at exit, either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
