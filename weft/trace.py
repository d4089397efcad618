"""The trace of a compilation: the text of every stage and kernel in numbered files, a summary."""

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
from weft.recording import recorder

_LOCK = threading.Lock()
_REPORTED: set[Path] = set()  # folders whose failure is already reported


class Trace:
    """Writes modules to a new folder, `0003-jit_step/02-sharded.mlir`; without a folder, nothing.

    Write errors are reported once and do not stop the compilation.
    """

    def __init__(self, folder: Path | None, name: str | None) -> None:
        self._count = itertools.count(1)
        self._root, self._name = folder, name or "module"
        self._folder: Path | None = None
        self.seconds: dict[str, float] = {}  # seconds of each stage, in order
        if folder is not None:
            try:
                self._folder = _fresh(folder, name or "module")
            except OSError as error:
                self._give_up(error)

    @property
    def is_on(self) -> bool:
        """Whether it writes files."""
        return self._folder is not None

    def write(self, stage: str, module: Module) -> None:
        """Write the module after that stage, with locations."""
        number = next(self._count)
        if self.is_on:
            self.write_text(f"{number:02}-{stage}.mlir", module.text(locations=True))

    def write_executable(self, stage: str, executable: Executable) -> None:
        """Write the text of an executable after that stage, without its constants."""
        number = next(self._count)
        if self.is_on:
            self.write_text(f"{number:02}-{stage}.txt", executable.text().text)

    def write_text(self, name: str, text: str) -> None:
        """Write a file of that name, which may include a subfolder."""
        if self._folder is None:
            return
        path = self._folder / name
        try:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
        except OSError as error:
            _remove(path)  # a partial file would look complete
            self._give_up(error)

    def note(self, lines: Iterable[str]) -> None:
        """Write `notes.txt`: deviations from the program's request."""
        if text := "".join([f"{line}\n" for line in lines]):
            self.write_text("notes.txt", text)

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        """Time a stage."""
        self.took(stage, 0.0)  # reserves its position before nested stages
        begin = time.perf_counter()
        yield
        self.took(stage, time.perf_counter() - begin)

    def took(self, stage: str, seconds: float) -> None:
        """Add seconds to a stage, which end now."""
        self.seconds[stage] = self.seconds.get(stage, 0.0) + seconds
        if seconds and (found := recorder()) is not None:
            end = found.clock()
            found.zone(self._name, stage, end - round(1e9 * seconds), end)

    def _give_up(self, error: OSError) -> None:
        """Disable the trace, and warn once per folder."""
        self._folder = None
        assert self._root is not None, "only an enabled trace is written"
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
    except OSError:  # the cause of the write error prevents removal, too
        return


def _fresh(folder: Path, name: str) -> Path:
    """A new folder with the next number."""
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
            except FileExistsError:  # another process created it first
                number += 1
