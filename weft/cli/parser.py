"""Command lines: argparse, with an example in every help text and suggestions for typos."""

from __future__ import annotations

import argparse
import difflib
import re
import textwrap
from collections.abc import Callable
from typing import Any, NoReturn, TypeAlias

Subparsers: TypeAlias = "argparse._SubParsersAction[Parser]"

_CHOICE = re.compile(r"(?:argument (\S+): )?invalid choice: '([^']*)'")
_UNKNOWN = re.compile(r"unrecognized arguments: (\S+)")


class _Help(argparse.RawDescriptionHelpFormatter):
    """Help texts: paragraphs are wrapped to the terminal, examples keep their lines."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        if text.startswith("example:"):
            return super()._fill_text(text, width, indent)
        return textwrap.fill(text, width, initial_indent=indent, subsequent_indent=indent)


class Parser(argparse.ArgumentParser):
    """An argument parser that suggests the nearest known word."""

    def __init__(self, *, example: str = "", **options: Any) -> None:
        options.setdefault("formatter_class", _Help)
        if example:
            options["epilog"] = f"example:\n  {example}"
        super().__init__(allow_abbrev=False, **options)
        self._is_mixing = False

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Like argparse's, but options may come before, between and after arguments.

        A command with another program's arguments takes its own options before these.
        """
        rest = any(action.nargs == argparse.REMAINDER for action in self._actions)
        if self._is_mixing or self._subparsers is not None or rest:
            return super().parse_known_args(args, namespace)
        self._is_mixing = True  # parse_known_intermixed_args calls this for each half
        try:
            return super().parse_known_intermixed_args(args, namespace)
        finally:
            self._is_mixing = False

    def error(self, message: str) -> NoReturn:
        """Print the error and a suggestion, and exit with status 2."""
        hint = ""
        if choice := _CHOICE.search(message):
            message, hint = self._choice(choice[1] or "", choice[2])
        elif unknown := _UNKNOWN.search(message):
            kind = "option" if unknown[1].startswith("-") else "argument"
            message = f"unknown {kind} {unknown[1]!r}"
            hint = _guess(unknown[1], [w for a in self._actions for w in a.option_strings])
        self.exit(2, f"error: {message}\nhelp: {hint}`{self.prog} --help` shows what there is\n")

    def _choice(self, argument: str, word: str) -> tuple[str, str]:
        """The error message for an invalid choice."""
        if argument == "COMMAND":
            words = [w for a in self._actions for w in (a.choices or ())]
            return f"unknown command {word!r}", _guess(word, words)
        words = [
            str(w)
            for a in self._actions
            if argument in (*a.option_strings, a.dest, a.metavar)
            for w in (a.choices or ())
        ]
        known = f"; expected {', '.join(words[:-1])} or {words[-1]}" if words else ""
        return f"unknown {argument} {word!r}{known}", _guess(word, words)


def _guess(given: str, words: list[str]) -> str:
    near = difflib.get_close_matches(given, words, n=1)
    return f"did you mean {near[0]}? " if near else ""


def natural(text: str) -> int:
    """A nonnegative integer, as the type of an argument."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a nonnegative integer")
    return int(text)


def command(
    commands: Subparsers,
    run: Callable[[argparse.Namespace], int],
    name: str,
    text: str,
    example: str,
) -> Parser:
    """Add a command, whose description is `text` and whose help ends with `example`."""
    parser = commands.add_parser(name, help=_summary(text), description=text, example=example)
    parser.set_defaults(run=run, parser=parser)
    return parser


def _summary(text: str) -> str:
    """The first clause of a description, for the list of commands."""
    return re.split(r"[.:;](?:\s|$)", text, maxsplit=1)[0]
