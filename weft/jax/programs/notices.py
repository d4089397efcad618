"""Notices: information without required action, printed to stderr once per process."""

from __future__ import annotations

import sys

_PRINTED: set[str] = set()


def notify(text: str) -> None:
    """Print a notice, unless it was printed before."""
    if text not in _PRINTED:
        _PRINTED.add(text)
        print(f"weft: {text}", file=sys.stderr, flush=True)
