"""What branches and loops share: which region is taken, and spelling values out."""

from __future__ import annotations

from typing import Any

import numpy as np

from weft.ir.module import Node, Value
from weft.ir.types import TensorType
from weft.ops.control import If
from weft.run.layout import Layout
from weft.varying.masks import Mask


def chooser_of(node: Node) -> Any:
    """From a predicate or an index to the number of the region."""
    if isinstance(node.op, If):
        return lambda value: 0 if value else 1
    last = len(node.regions) - 1
    return lambda value: int(value) if 0 <= value <= last else last


def widen(given: Mask, wanted: Mask, layout: Layout) -> Any:
    """A function that spells a value out along more leading dims; it is told the active rows."""
    if given == wanted:
        return lambda x, active: x
    if isinstance(given, tuple) and isinstance(wanted, tuple):
        parts = [widen(g, w, layout) for g, w in zip(given, wanted, strict=True)]
        return lambda xs, active: tuple([p(x, active) for p, x in zip(parts, xs, strict=True)])
    assert isinstance(wanted, int)
    mask, lead = wanted, layout.lead

    def run(x: Any, active: Any) -> Any:
        if x is None:
            return None
        head = layout.shape(mask, 1 if active is None else len(active))
        return np.broadcast_to(x, head + x.shape[lead:])

    return run


def shape_of(value: Value, mask: Mask, layout: Layout) -> tuple[int, ...] | None:
    """The shape of a stack, where it is known before the program runs."""
    type = value.type
    if not isinstance(type, TensorType) or not isinstance(mask, int):
        return None
    if layout.has_rows and mask & 1:
        return None
    return layout.shape(mask) + type.sizes
