"""What branches and loops share: which region, spelling values out, and when values die."""

from __future__ import annotations

from typing import Any

import numpy as np

from weft.ir.module import Node, Region, Value, walk
from weft.ir.types import TensorType
from weft.ops.control import If
from weft.run.layout import Layout, Mask


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


def deaths(region: Region) -> list[tuple[Value, ...]]:
    """For each node, the values of this region that nothing reads after it."""
    kept = set(region.results)
    last: dict[Value, int] = {}
    for position, node in enumerate(region.nodes):
        last.update(dict.fromkeys(node.results, position))
        last.update(dict.fromkeys(node.operands, position))
        for inner in node.regions:
            for deep in walk(inner):
                last.update(dict.fromkeys(deep.operands, position))
                for deepest in deep.regions:
                    last.update(dict.fromkeys(deepest.results, position))
            last.update(dict.fromkeys(inner.results, position))
    own = {v for node in region.nodes for v in node.results} | set(region.args)
    dead: list[list[Value]] = [[] for _ in region.nodes]
    for value, position in last.items():
        if value in own and value not in kept:
            dead[position].append(value)
    return [tuple(d) for d in dead]
