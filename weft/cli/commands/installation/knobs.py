"""`weft knobs`: every environment variable that Weft reads, its value, and its source."""

from __future__ import annotations

import argparse
import os
from typing import Any

from weft.cli.parser import Subparsers, command
from weft.cli.screen import print_json, print_table
from weft.columns import Column
from weft.errors import WeftError
from weft.knobs import CACHE, KNOBS, Knob, cache_folder
from weft.records import dataclass

_ENVIRONMENT, _DEFAULT = "environment", "default"


@dataclass(frozen=True, slots=True)
class State:
    """The current setting of a knob."""

    knob: Knob[Any]
    value: str
    source: str
    is_wrong: bool = False


def add(commands: Subparsers) -> None:
    """Add the command."""
    parser = command(
        commands,
        run,
        "knobs",
        "Show the environment variables that Weft reads: what each is set to, where that comes "
        "from, and what it does.",
        "weft knobs --json",
    )
    parser.add_argument("--json", action="store_true", help="print them as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Show the table; status 1 if one of them is invalid."""
    states = [state(knob) for knob in KNOBS]
    if arguments.json:
        print_json([as_json(found) for found in states])
    else:
        show(states)
    return 1 if any(found.is_wrong for found in states) else 0


def state(knob: Knob[Any]) -> State:
    """The value of a knob, and its source."""
    text = os.environ.get(knob.name, "")
    try:
        value = knob.value()
    except WeftError:
        return State(knob, f"{text} (invalid)", _ENVIRONMENT, is_wrong=True)
    if text:
        return State(knob, _text(value), _ENVIRONMENT)
    if knob is CACHE:
        return State(knob, str(cache_folder() or "none"), _cache_source())
    return State(knob, _text(value), _DEFAULT)


def _cache_source() -> str:
    return "XDG_CACHE_HOME" if os.environ.get("XDG_CACHE_HOME") else _DEFAULT


def _text(value: object) -> str:
    """A value as the text of an environment variable."""
    if value is None:
        return "not set"
    return str(int(value)) if isinstance(value, bool) else str(value)


def as_json(found: State) -> dict[str, object]:
    """A knob as data."""
    made = {"name": found.knob.name, "value": found.value, "from": found.source}
    return made | {"about": found.knob.about, "ok": not found.is_wrong}


def show(states: list[State]) -> None:
    """Print a row for each knob; long texts are wrapped to the terminal."""
    columns = (
        Column("knob"),
        Column("value", fit="wrap"),
        Column("from"),
        Column("what it does", fit="wrap", least=16),
    )
    rows = [(s.knob.name, s.value, s.source, s.knob.about) for s in states]

    def style(row: int, column: int, nth: int) -> str:
        found = states[row]
        marked = "red" if found.is_wrong else "bold" if found.source != _DEFAULT else ""
        return marked if column < 3 else ""

    print_table(columns, rows, style)
