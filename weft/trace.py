"""The trace of a compilation: every stage's text in a numbered file."""

from __future__ import annotations

import itertools
import re
import threading
from collections.abc import Iterable
from pathlib import Path

from weft.ir.module import Module

_LOCK = threading.Lock()


class Trace:
    """Writes modules to a folder of their own, `0003-jit_step/02-sharded.mlir`; or nothing."""

    def __init__(self, folder: Path | None, name: str | None) -> None:
        self._count = itertools.count(1)
        self._folder = None if folder is None else _fresh(folder, name or "module")

    def write(self, stage: str, module: Module) -> None:
        """Write the module after that stage, with locations."""
        if self._folder is not None:
            file = self._folder / f"{next(self._count):02}-{stage}.mlir"
            file.write_text(module.text(locations=True))

    def note(self, lines: Iterable[str]) -> None:
        """Add lines to `notes.txt`: what was done otherwise than the program leads to expect."""
        text = "".join([f"{line}\n" for line in lines])
        if text and self._folder is not None:
            with (self._folder / "notes.txt").open("a") as file:
                file.write(text)


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
