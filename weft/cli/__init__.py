"""The command `weft`."""

from __future__ import annotations

import importlib
import io
import os
import sys
from collections.abc import Iterable, Sequence

import weft
from weft.cli.parser import Parser
from weft.cli.screen import plain_warnings, print_error
from weft.errors import WeftError

# The module of each command; a command line imports those of its own command alone, so that
# `weft launch` starts workers before it could have imported the compiler.
COMMANDS = {
    "run": "run",
    "eval": "evaluate",
    "check": "check",
    "shard": "shard",
    "partition": "partition",
    "opt": "opt",
    "compile": "compile",
    "show": "show",
    "why": "why",
    "explain": "explain",
    "predict": "predict",
    "profile": "profile",
    "kernels": "kernels",
    "plan": "plan",
    "report": "report",
    "machines": "machines",
    "machine": "machine",
    "calibrate": "calibrate",
    "cost": "cost",
    "launch": "launch",
    "serve-devices": "serve_devices",
    "ops": "installation.ops",
    "cache": "installation.cache",
    "knobs": "installation.knobs",
    "doctor": "installation.doctor",
    "conformance": "installation.conformance",
    "compare": "compare",
    "zoo": "zoo",
}


_OWN_OPTIONS = ("-h", "--help", "--version")  # all other options belong to a command and follow it


def make_parser(names: Iterable[str] = COMMANDS) -> Parser:
    """The parser of the command line, for some commands or all."""
    parser = Parser(
        prog="weft",
        description="Compile and run PyTorch and JAX programs on many devices.",
        example="weft eval examples/mlp.mlir",
    )
    parser.add_argument("--version", action="version", version=f"weft {weft.__version__}")
    commands = parser.add_subparsers(
        title="commands", metavar="COMMAND", dest="command", required=True, parser_class=Parser
    )
    for name in names:
        importlib.import_module(f"weft.cli.commands.{COMMANDS[name]}").add(commands)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit status."""
    line = sys.argv[1:] if argv is None else argv
    _open_closed_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # an ASCII terminal shows ? for ✓ and …
    try:
        parser = make_parser(line[:1] if line and line[0] in COMMANDS else COMMANDS)
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


def _open_closed_streams() -> None:
    """Open what a shell has closed (`>&-`), for processes that are started, too."""
    for fd, flags in enumerate((os.O_RDONLY, os.O_WRONLY, os.O_WRONLY)):
        try:
            os.fstat(fd)
        except OSError:
            os.set_inheritable(os.open(os.devnull, flags), True)  # the lowest number that is free
    if sys.stdout is None:
        sys.stdout = os.fdopen(1, "w", closefd=False)
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w", closefd=False)
