"""Reference values on disk, so that a comparison computes them once."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path

import numpy as np

from weft.errors import warn
from weft.ir.types import DTYPES, Array, dtype_of

_TYPES = "element types"  # numpy's files have no names for bf16 and the 8-bit floats


def keep_arrays(file: Path, named: dict[str, Array]) -> None:
    """Store arrays atomically; a folder that cannot be used is a warning."""
    unfinished = file.with_suffix(f".{os.getpid()}.tmp")
    types = json.dumps({name: dtype_of(array.dtype).name for name, array in named.items()})
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with unfinished.open("wb") as stream:
            np.savez(stream, **{_TYPES: np.asarray(types)}, **named)  # type: ignore[arg-type]
        unfinished.replace(file)
    except OSError as error:
        with contextlib.suppress(OSError):
            unfinished.unlink()
        reason = error.strerror or error
        warn(f"weft does not keep the reference values in {file.parent}: {reason}")


def stored_arrays(file: Path | None) -> dict[str, Array] | None:
    """The arrays of a file in their order, or None if there is none."""
    if file is None or not os.path.isfile(file):
        return None
    with np.load(file) as stored:
        if _TYPES not in stored.files:  # written by an older version
            return None
        types = json.loads(str(stored[_TYPES]))
        return {
            name: stored[name].view(DTYPES[held].numpy)
            if stored[name].dtype.kind == "V"
            else stored[name]
            for name, held in types.items()
        }
