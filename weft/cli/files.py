"""Files that commands read and write."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path

from weft.cli.parser import Parser
from weft.cli.screen import print_json, print_labelled
from weft.errors import WeftError


def source(file: str) -> bytes | Path:
    """The source of a program: a file, or standard input for `-`."""
    if file != "-":
        return Path(file)
    if sys.stdin is None:
        raise WeftError("standard input is closed", help="name a file in place of -")
    return sys.stdin.buffer.read()


def write(path: Path, text: str) -> None:
    """Write a text to a file."""
    try:
        path.write_text(text)
    except OSError as error:
        raise WeftError(
            f"cannot write {path}: {error.strerror or error}",
            help="name a file in a folder of yours",
        ) from None


def add_out(parser: Parser) -> None:
    """Add the options of a program's output."""
    parser.add_argument(
        "-o", "--out", metavar="OUT.mlir", help="write the program to this file, and a summary here"
    )
    parser.add_argument(
        "--json", action="store_true", help="print the summary, and the text without -o, as JSON"
    )


def put_out(arguments: argparse.Namespace, text: str, summary: Iterable[tuple[str, str]]) -> None:
    """Print a program, or write it and print the summary."""
    if arguments.out is not None:
        write(Path(arguments.out), text)
    if arguments.json:
        kept = {"text": text} if arguments.out is None else {"written": arguments.out}
        print_json({"summary": [*map(list, summary)]} | kept)
    elif arguments.out is None:
        print(text, end="")
    else:
        print_labelled([*summary, ("written", arguments.out)])
