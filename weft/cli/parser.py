"""Command lines: argparse, with an example in every help text and a guess at every typo."""

from __future__ import annotations

import argparse
import difflib
import re
from collections.abc import Callable
from typing import Any, NoReturn, TypeAlias

Commands: TypeAlias = "argparse._SubParsersAction[Parser]"

_CHOICE = re.compile(r"invalid choice: '([^']*)'")
_UNKNOWN = re.compile(r"unrecognized arguments: (\S+)")


class Parser(argparse.ArgumentParser):
    """An argument parser that suggests the nearest word it knows."""

    def __init__(self, *, example: str = "", **options: Any) -> None:
        options.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        if example:
            options["epilog"] = f"example:\n  {example}"
        super().__init__(allow_abbrev=False, **options)
        self._is_mixing = False

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As argparse does it, but options may stand before, between and after arguments."""
        if self._is_mixing or self._subparsers is not None:
            return super().parse_known_args(args, namespace)
        self._is_mixing = True  # argparse comes back here for each half
        try:
            return super().parse_known_intermixed_args(args, namespace)
        finally:
            self._is_mixing = False

    def error(self, message: str) -> NoReturn:
        """Print what is wrong and what was probably meant, and exit with status 2."""
        typo = _CHOICE.search(message) or _UNKNOWN.search(message)
        if typo:
            message = f"unknown {_kind(typo)} {typo[1]!r}"
        near = difflib.get_close_matches(typo[1], self._words(), n=1) if typo else []
        hint = f"did you mean {near[0]}? " if near else ""
        self.exit(2, f"error: {message}\nhelp: {hint}`{self.prog} --help` shows what there is\n")

    def _words(self) -> list[str]:
        words: list[str] = []
        for action in self._actions:
            words += [*action.option_strings, *(action.choices or ())]
        return words


def _kind(typo: re.Match[str]) -> str:
    if typo.re is _CHOICE:
        return "command"
    return "option" if typo[1].startswith("-") else "argument"


def command(
    commands: Commands, run: Callable[[argparse.Namespace], int], name: str, text: str, example: str
) -> Parser:
    """Add a command, whose description is `text` and whose help ends with `example`."""
    made = commands.add_parser(name, help=text, description=text, example=example)
    made.set_defaults(run=run, parser=made)
    return made
