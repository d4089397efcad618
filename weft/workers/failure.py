"""Failures of workers: a note of each worker that ends by an error, and the root cause of all.

A note goes to the key-value store, for the other workers, and to the file that the launcher names
in TORCHELASTIC_ERROR_FILE, in torchrun's form.
"""

from __future__ import annotations

import json
import os
import time
import traceback
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from weft.errors import WeftError
from weft.ir.location import Location
from weft.records import dataclass

ERROR_FILE = "TORCHELASTIC_ERROR_FILE"
LENGTH = 2000  # characters of an error that are passed on


class WorkerLost(WeftError):
    """Another worker has not come in time, or is gone."""

    def __init__(self, message: str, *, rank: int, help: str, loc: Location | None = None) -> None:
        super().__init__(message, help=help, loc=loc)
        self.rank = rank


@dataclass(frozen=True, slots=True)
class FailureNote:
    """The error that ends a worker; `blames` is the worker that it waited for in vain."""

    rank: int
    error: str
    blames: int | None = None
    step: int = 0


def note_of(rank: int, error: BaseException, step: int = 0) -> FailureNote:
    """The note of an error; it blames the lost worker, if one is in its chain of causes."""
    cause: BaseException | None = error
    blames = None
    while cause is not None and blames is None:
        blames = cause.rank if isinstance(cause, WorkerLost) else None
        cause = cause.__cause__ or cause.__context__
    return FailureNote(rank, _text(error)[:LENGTH], blames, step)


def _text(error: BaseException) -> str:
    """An error without the op's text, which the worker's own output has, and the user's line."""
    from weft.array.context import is_users, line_at  # launchers start without numpy

    # Of the traceback, unless the error knows it: that which called Weft or another library.
    steps = traceback.walk_tb(error.__traceback__)
    places = [line_at(frame.f_code.co_filename, line) for frame, line in steps if is_users(frame)]
    if isinstance(error, WeftError):
        if error.loc is not None and error.loc.known:
            places = [error.loc.describe()]
        message, help_ = error.message, f"\nhelp: {error.help}"
    else:
        message, help_ = f"{type(error).__name__}: {error}".rstrip(": "), ""
    where = f"\n  --> {places[-1]}" if places else ""
    return f"{message}{where}{help_}"


def root_cause(rank: int, notes: Mapping[int, FailureNote]) -> int:
    """The worker at the end of the chain of blame that begins at one."""
    seen = [rank]
    while (note := notes.get(seen[-1])) is not None and note.blames is not None:
        if note.blames in seen:  # they waited for each other
            return rank
        seen.append(note.blames)
    return seen[-1]


def write_note(note: FailureNote, path: str | None = None) -> None:
    """Write a note to the launcher's file, if it names one."""
    path = os.environ.get(ERROR_FILE) if path is None else path
    if not path:
        return
    message = {"message": note.error, "extraInfo": {"timestamp": str(int(time.time()))}}
    partial = Path(f"{path}.partial")
    try:
        partial.write_text(json.dumps({"message": message, "weft": asdict(note)}))
        # Whole or not at all: torchrun itself fails by a file that a full disk has cut.
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def read_note(path: Path) -> FailureNote | None:
    """The note in a file; None if its worker wrote none, or was killed while it did."""
    try:
        return FailureNote(**json.loads(path.read_text())["weft"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
