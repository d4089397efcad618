"""Files that commands read and write."""

from __future__ import annotations

import sys
from pathlib import Path

from weft.errors import WeftError


def source(file: str) -> bytes | Path:
    """What a program is read from: a file, or standard input for `-`."""
    if file != "-":
        return Path(file)
    if sys.stdin is None:
        raise WeftError("standard input is closed", help="name a file in place of -")
    return sys.stdin.buffer.read()


def write(path: Path, text: str) -> None:
    """Write a text, or say why that cannot be done."""
    try:
        path.write_text(text)
    except OSError as error:
        raise WeftError(
            f"cannot write {path}: {error.strerror or error}",
            help="name a file in a folder of yours",
        ) from None
