"""Groups as bytes: what tile decided for a region, to be had again for one that is the same."""

from __future__ import annotations

import hashlib
import pickle
from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from weft.ir.module import Node, Region, Value
from weft.ir.reading import captured
from weft.kernels.alone import Alone
from weft.kernels.group import Group, Launch
from weft.kernels.placed import Placed
from weft.ops.shape import Constant

ROOM = Path(__file__).parent.parent


def fingerprint(placed: Sequence[Placed], sizes: Sequence[int], results: Sequence[Value]) -> str:
    """A number for all that tile looks at: the nodes, what varies, what is wanted, its own code."""
    numbers = numbered(placed)
    texts: dict[object, str] = {}
    lines = [_source(), repr(tuple(sizes)), repr([numbers.get(v, -1) for v in results])]
    for p in placed:
        lines.append(f"{_node(p.node, numbers, texts)} {p.given} {p.made} {p.along} {p.sources}")
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def numbered(placed: Sequence[Placed]) -> dict[Value, int]:
    """Every value that the nodes read or make, in the order of their appearance."""
    found: dict[Value, int] = {}
    for p in placed:
        for value in (*p.node.operands, *p.node.results):
            found.setdefault(value, len(found))
    return found


def _node(node: Node, numbers: Mapping[Value, int], texts: dict[object, str]) -> str:
    operands = [numbers.get(v, -1) for v in node.operands]
    types = [_once(t, texts) for t in node.types]
    text = f"{_once(node.op, texts)} {operands} {types}"
    for region in node.regions:
        text += _region(region, numbers, texts)
    return text


def _region(region: Region, outer: Mapping[Value, int], texts: dict[object, str]) -> str:
    numbers = ChainMap[Value, int]({}, outer)  # type: ignore[arg-type]  # only the first is written
    for value in (*region.args, *(v for node in region.nodes for v in node.results)):
        numbers[value] = ~len(numbers.maps[0])
    lines = [_node(node, numbers, texts) for node in region.nodes]
    return f"{{{'; '.join(lines)} -> {[numbers.get(v, -1) for v in region.results]}}}"


def _once(thing: object, texts: dict[object, str]) -> str:
    """A short name for an op or a type; its text is part of the first line that has it."""
    found = texts.get(thing)
    if found is None:
        texts[thing] = f"#{len(texts)}"
        return f"#{len(texts)}={_text(thing)}"
    return found


def _text(thing: object) -> str:
    if isinstance(thing, Constant) and not thing.value.is_splat:
        array = thing.value.array
        return f"constant {thing.value.type} {hashlib.sha256(array.tobytes()).hexdigest()}"
    return repr(thing)


@cache
def _source() -> str:
    """A number for the code whose decisions are remembered."""
    found = hashlib.sha256()
    for folder in ("ir", "ops", "kernels", "tile", "emit"):
        for path in sorted((ROOM / folder).rglob("*.py")):
            found.update(path.read_bytes())
    return found.hexdigest()


def packed(
    groups: Sequence[Group], placed: Sequence[Placed], text_of: Callable[[Launch], Any]
) -> bytes | None:
    """Groups as bytes; None if they have nodes that the region has not.

    Values that only kernels hand to each other get numbers after all others. With each kernel goes
    the text that a target has emitted for it.
    """
    numbers = numbered(placed)
    named = len(numbers)
    positions = {p.node: n for n, p in enumerate(placed)}
    kernels: dict[Launch, int] = {}
    rows = []
    for group in groups:
        if group.kernel is not None:
            for value in (*group.inputs, *group.outputs):
                numbers.setdefault(value, len(numbers))
        if any(node not in positions for node in group.nodes):
            return None
        kernel = group.kernel
        index: int | str | None = None
        if isinstance(kernel, Alone):
            index = "alone"
        elif kernel is not None:
            index = kernels.setdefault(kernel, len(kernels))
        rows.append(
            (
                [positions[n] for n in group.nodes],
                index,
                [numbers.get(v, -1) for v in group.inputs],
                [numbers.get(v, -1) for v in group.outputs],
            )
        )
    extra = [value.type for value in list(numbers)[named:]]
    return pickle.dumps(([(k, text_of(k)) for k in kernels], extra, rows))


def restored(
    data: bytes, placed: Sequence[Placed], alone: Callable[[Placed], Launch | None]
) -> tuple[list[Group], dict[Launch, Any]]:
    """The groups that `packed` wrote, for nodes with the same fingerprint, and kernels' texts."""
    texts, extra, rows = pickle.loads(data)
    kernels = [kernel for kernel, _ in texts]
    values = [*numbered(placed), *(Value(type) for type in extra)]
    found: list[Group] = []
    for positions, index, inputs, outputs in rows:
        nodes = tuple([placed[n].node for n in positions])
        kernel: Launch | None
        if index == "alone":
            kernel = alone(placed[positions[0]])
            assert kernel is not None, "the node had a kernel before"
        else:
            kernel = None if index is None else kernels[index]
        if kernel is None:
            (node,) = nodes
            found.append(Group(nodes, None, (*node.operands, *captured(node)), node.results))
        else:
            given = tuple([values[n] for n in inputs])
            found.append(Group(nodes, kernel, given, tuple([values[n] for n in outputs])))
    return found, dict(texts)
