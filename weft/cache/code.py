"""A digest of Weft's own code, for entries that another version would not make the same way."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

_ROOT = Path(__file__).parent.parent
_FOLDERS = ("ir", "ops", "kernels", "tile", "emit")


@cache
def code_digest() -> str:
    """A number for the code that decides on kernels and emits them."""
    found = hashlib.sha256()
    for folder in _FOLDERS:
        for path in sorted((_ROOT / folder).rglob("*.py")):
            found.update(path.read_bytes())
    return found.hexdigest()
