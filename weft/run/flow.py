"""Shared by branches and loops: block selection, and broadcasting values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np

from weft.array.memory import on_host
from weft.executable.stack_dims import StackDims
from weft.varying.masks import Mask


def chooser_of(way: Literal["if", "case"], count: int) -> Callable[[Any], int]:
    """The function from a predicate or index to a block number."""
    if way == "if":
        return lambda value: 0 if value else 1
    last = count - 1  # for any index out of range, as in StableHLO
    return lambda value: int(value) if 0 <= value <= last else last


def widen(actual: Mask, wanted: Mask, stack_dims: StackDims) -> Any:
    """A function that broadcasts a value to a wider mask, given the active rows."""
    if actual == wanted:
        return lambda x, active: x
    if isinstance(actual, tuple) and isinstance(wanted, tuple):
        parts = [widen(g, w, stack_dims) for g, w in zip(actual, wanted, strict=True)]
        return lambda xs, active: tuple([p(x, active) for p, x in zip(parts, xs, strict=True)])
    assert isinstance(wanted, int)
    mask, lead = wanted, stack_dims.lead

    def run(x: Any, active: Any) -> Any:
        if x is None:
            return None
        head = stack_dims.shape(mask, 1 if active is None else len(active))
        return np.broadcast_to(on_host(x), head + x.shape[lead:])

    return run
