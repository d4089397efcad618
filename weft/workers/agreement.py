"""Whether all workers give a program the same arguments: equal bits, or floats that are close.

Checksums are compared first. Floats whose bits differ are compared by random projections: hosts
with other processors may initialize the same weights with other last bits. Weights of another seed
are as far apart as they are long.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from weft.errors import WeftError, warn
from weft.ir.types import Array, dtype_of, finfo
from weft.workers.coordination import CoordinationClient, majority, worker_names
from weft.workers.failure import WorkerLost

BLOCK_BYTES, CHECKED_BLOCKS = 1 << 14, 64  # of an argument that is compared between workers
PROJECTIONS = 16
# In units of the last place, of the norm of the differences to that of the values. Types of 32 and
# 64 bits are computed in themselves, by other instructions; narrower ones are rounded once.
WIDE_ULPS, NARROW_ULPS = 128.0, 1.0
_SEED = 0


def agree_on_values(
    coordination: CoordinationClient, name: str, given: Mapping[str, object]
) -> None:
    """Raise unless all workers give a program the same host arrays; warn if they are only close."""
    arguments = {key: each for key, each in given.items() if isinstance(each, np.ndarray)}
    sums = {key: checksum(each) for key, each in arguments.items()}
    listed = dict(enumerate(coordination.gather_texts(f"called {name}", json.dumps(sums))))
    job, odd = majority(listed)
    if not odd:
        return
    most = json.loads(job)
    others = [json.loads(listed[rank]) for rank in odd]
    differing = [key for key in most if any(most[key] != other.get(key) for other in others)]
    # All workers have the same list, so that all of them send the sketches of the same arguments.
    sketches = {key: sketch(arguments[key]) for key in differing if key in arguments}
    texts = coordination.gather_texts(f"compared the arguments of {name}", json.dumps(sketches))
    found = [json.loads(text) for text in texts]
    first = next(rank for rank, text in listed.items() if text == job)
    for key in differing or ["another"]:
        far = [rank for rank in odd if not are_close(found[first].get(key), found[rank].get(key))]
        if far:
            raise _difference(coordination.me.rank, key, name, far, first)
    if coordination.me.rank in odd:
        warn(
            f"{', '.join(differing)} of {name}: last bits differ between {worker_names(odd)} and "
            f"worker {first}, as of values that other processors have computed; each worker goes "
            "on with its own: load or broadcast the same ones where that matters"
        )


def _difference(rank: int, key: str, name: str, far: Sequence[int], first: int) -> WeftError:
    message = (
        f"argument {key} of {name} has other values in {worker_names(far)} than in worker {first}"
    )
    help_ = (
        "every worker gives the same whole array: call torch.manual_seed(0) or the like before "
        "parameters are made, and use weft.put_local for rows of each worker's own"
    )
    if rank in far:
        return WeftError(message, help=help_)
    return WorkerLost(message, rank=far[0], help=help_)


def checksum(array: Array) -> int:
    """A checksum of the bytes that are compared."""
    return zlib.crc32(compared_bytes(array))


def compared_bytes(array: Array) -> bytes:
    """An array's bytes; of a large one, blocks spread evenly.

    Weights that are mapped from a file are not read as a whole: a worker needs only its shards.
    """
    raw = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    step = raw.size // (CHECKED_BLOCKS * BLOCK_BYTES)
    if step < 2:
        return raw.tobytes()
    blocks = raw[: raw.size // BLOCK_BYTES * BLOCK_BYTES].reshape(-1, BLOCK_BYTES)
    return blocks[::step].tobytes() + raw[-BLOCK_BYTES:].tobytes()


Sketch = tuple[float, int, float, list[float]]  # tolerance, finiteness, norm, projections


def sketch(array: Array) -> Sketch | None:
    """Projections of the compared elements on random signs; None for other types than floats.

    The difference of two projections is about as large as the norm of the differences.
    """
    dtype = dtype_of(array.dtype)
    if not (dtype.is_float or dtype.is_complex):
        return None
    values = np.frombuffer(compared_bytes(array), array.dtype)
    if dtype.is_complex:
        values = values.view(array.real.dtype)
    exact = values.astype(np.float64)
    finite = np.isfinite(exact)
    # Infinities and NaNs, as of masks, are compared by place and kind.
    kinds = np.where(finite, 0, np.where(np.isnan(exact), 3, np.sign(exact))).astype(np.int8)
    exact = np.where(finite, exact, 0.0)
    draw = np.random.Generator(np.random.PCG64(_SEED))
    with np.errstate(over="ignore"):
        signs = draw.integers(0, 2, (PROJECTIONS, exact.size), np.int8) * 2 - 1
        projections = [float(np.dot(row.astype(np.float64), exact)) for row in signs]
        norm = float(np.sqrt(np.dot(exact, exact)))
    ulps = NARROW_ULPS if dtype.real.bits < 32 else WIDE_ULPS
    tolerance = ulps * float(finfo(dtype.real).eps)
    return tolerance, zlib.crc32(kinds.tobytes()), norm, projections


def are_close(one: Sequence[Any] | None, other: Sequence[Any] | None) -> bool:
    """Whether two sketches are of arrays that differ by last bits alone."""
    match one, other:
        case [
            (float(tolerance), kinds, float(norm), [*projections]),
            (float(same), theirs, float(), [*others]),
        ] if (tolerance, kinds) == (same, theirs) and math.isfinite(norm):
            farthest = max(abs(a - b) for a, b in zip(projections, others, strict=True))
            return bool(farthest <= tolerance * norm)
    return False
