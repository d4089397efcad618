"""Messages for exceptions raised by Python callbacks."""

from __future__ import annotations

import importlib.util
import traceback
from functools import cache
from pathlib import Path


def callback_error_message(error: BaseException) -> str:
    """The exception, the user's stack frames, and the source line of the program."""
    first, *notes = traceback.format_exception_only(error)
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith(_inner_folders())]
    lines = ["Traceback (most recent call last):\n", *traceback.format_list(own)] if own else []
    return "".join([first, *lines, *notes]).rstrip()


@cache
def _inner_folders() -> tuple[str, ...]:
    """The folders of Weft and JAX, whose frames are omitted."""
    folders = [str(Path(__file__).parents[2])]
    for name in ("jax", "jaxlib"):
        spec = importlib.util.find_spec(name)
        folders += list(spec.submodule_search_locations or ()) if spec is not None else []
    return tuple([f"{folder}/" for folder in folders])
