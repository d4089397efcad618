"""Files that commands write."""

from __future__ import annotations

from pathlib import Path

from weft.errors import WeftError


def write(path: Path, text: str) -> None:
    """Write a text, or say why that cannot be done."""
    try:
        path.write_text(text)
    except OSError as error:
        raise WeftError(
            f"cannot write {path}: {error.strerror or error}",
            help="name a file in a folder of yours",
        ) from None
