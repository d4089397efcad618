"""The trace of a compilation: every stage's text in a numbered file, kernels, and a summary."""

from __future__ import annotations

import itertools
import re
import threading
import time
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from weft.executable.executable import Executable
from weft.ir.module import Module

_LOCK = threading.Lock()
_REPORTED: set[Path] = set()  # folders whose failure was reported


class Trace:
    """Writes modules to a folder of their own, `0003-jit_step/02-sharded.mlir`; or nothing.

    A trace never loses a run: what cannot be written is reported once, and the compilation goes on.
    """

    def __init__(self, folder: Path | None, name: str | None) -> None:
        self._count = itertools.count(1)
        self._root = folder
        self._folder: Path | None = None
        self.seconds: dict[str, float] = {}  # of each stage, in order
        if folder is not None:
            try:
                self._folder = _fresh(folder, name or "module")
            except OSError as error:
                self._give_up(error)

    @property
    def is_on(self) -> bool:
        """Whether anything is written."""
        return self._folder is not None

    def write(self, stage: str, module: Module) -> None:
        """Write the module after that stage, with locations."""
        number = next(self._count)
        if self.is_on:
            self.write_text(f"{number:02}-{stage}.mlir", module.text(locations=True))

    def write_executable(self, stage: str, made: Executable) -> None:
        """Write the text of an executable after that stage; constants beside it are left out."""
        number = next(self._count)
        if self.is_on:
            self.write_text(f"{number:02}-{stage}.txt", made.text().text)

    def write_text(self, name: str, text: str) -> None:
        """Write a file of that name, perhaps in a folder inside of the trace's."""
        if self._folder is None:
            return
        path = self._folder / name
        try:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
        except OSError as error:
            _remove(path)  # half a file would be taken for a whole one
            self._give_up(error)

    def note(self, lines: Iterable[str]) -> None:
        """Write `notes.txt`: what was done otherwise than the program leads to expect."""
        if text := "".join([f"{line}\n" for line in lines]):
            self.write_text("notes.txt", text)

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        """Note how long a stage takes."""
        self.took(stage, 0.0)  # in its place before those that are inside
        begin = time.perf_counter()
        yield
        self.took(stage, time.perf_counter() - begin)

    def took(self, stage: str, seconds: float) -> None:
        """Note how long a stage took; more if it runs again."""
        self.seconds[stage] = self.seconds.get(stage, 0.0) + seconds

    def _give_up(self, error: OSError) -> None:
        """Write nothing more, and warn of the folder, once."""
        self._folder = None
        assert self._root is not None, "only a folder that was asked for is written to"
        with _LOCK:
            is_new = self._root not in _REPORTED
            _REPORTED.add(self._root)
        if is_new:
            warnings.warn(
                f"WEFT_TRACE={self._root} cannot be written to ({error.strerror or error}): "
                "programs run, but their traces are incomplete",
                RuntimeWarning,
                stacklevel=3,
            )


def _remove(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError:  # what kept it from being written keeps it from being removed, too
        return


def _fresh(folder: Path, name: str) -> Path:
    """A new folder, numbered after those that are there."""
    word = re.sub(r"[^\w.-]+", "_", name)[:40]
    with _LOCK:
        folder.mkdir(parents=True, exist_ok=True)
        taken = [int(m[1]) for f in folder.iterdir() if (m := re.match(r"(\d+)-", f.name))]
        number = max(taken, default=0) + 1
        while True:
            made = folder / f"{number:04}-{word}"
            try:
                made.mkdir()
                return made
            except FileExistsError:  # another process was as quick
                number += 1
