"""The cache format of groups: tile's decisions for a region, restored for an equal one.

An entry is compressed JSON: the texts of kernels, the types of values passed between kernels only,
and for every group its nodes, kernel, inputs and outputs, by number. Nothing in it is executed, and
kernels are checked against their buffers. It is as trusted as the cache folder, which must be the
user's own, as machine code is there, too.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections import ChainMap
from collections.abc import Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Any

from weft.cache.code import code_digest
from weft.errors import WeftError
from weft.ir.module import Node, Region, Value
from weft.ir.scan import parse_type
from weft.ir.types import TensorType
from weft.ir.uses import free_variables
from weft.kernels.group import AnyKernel, Group
from weft.kernels.kernel import Operand
from weft.kernels.read import parse_kernel
from weft.kernels.stacked_node import StackedNode
from weft.kernels.text import kernel_text
from weft.ops.shape import Constant


def fingerprint(
    nodes: Sequence[StackedNode], sizes: Sequence[int], results: Sequence[Value]
) -> str:
    """The fingerprint of all inputs of tile: nodes, masks, results, and its own code."""
    numbers = numbered(nodes)
    for p in nodes:
        # Regions read values of outside, which are no operands: without numbers two regions that
        # read different ones would look alike.
        for value in free_variables(p.node) if p.node.regions else ():
            numbers.setdefault(value, len(numbers))
    texts: dict[object, str] = {}
    # The code is a part of the key: another version of tile may decide otherwise for the same
    # nodes.
    lines = [code_digest(), repr(tuple(sizes)), repr([numbers.get(v, -1) for v in results])]
    # Values of outside have their types here, the others at the nodes that define them: a slice of
    # 8 rows of 32 and of 128 are not the same.
    defined = {value for p in nodes for value in p.node.results}
    lines.append(repr([_once(value.type, texts) for value in numbers if value not in defined]))
    for p in nodes:
        lines.append(
            f"{_node(p.node, numbers, texts)} {p.given} {p.made} {p.along} {p.sources} {p.sends}"
        )
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def numbered(placed: Sequence[StackedNode]) -> dict[Value, int]:
    """Numbers of all values that the nodes read or define, in order of appearance."""
    numbers: dict[Value, int] = {}
    for p in placed:
        for value in (*p.node.operands, *p.node.results):
            numbers.setdefault(value, len(numbers))
    return numbers


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
        # Negative, so that a region's own values are never taken for outer ones.
        numbers[value] = ~len(numbers.maps[0])
    lines = [_node(node, numbers, texts) for node in region.nodes]
    return f"{{{'; '.join(lines)} -> {[numbers.get(v, -1) for v in region.results]}}}"


def _once(thing: object, texts: dict[object, str]) -> str:
    """A short name for an op or a type; the first occurrence carries its text."""
    name = texts.get(thing)
    if name is None:
        texts[thing] = f"#{len(texts)}"
        return f"#{len(texts)}={_text(thing)}"
    return name


def _text(thing: object) -> str:
    if isinstance(thing, Constant) and not thing.value.is_splat:
        array = thing.value.array
        # The text of a large constant would be abbreviated, and two of them would share a
        # fingerprint.
        return f"constant {thing.value.type} {hashlib.sha256(array.tobytes()).hexdigest()}"
    return repr(thing)


def packed(groups: Sequence[Group], placed: Sequence[StackedNode]) -> bytes | None:
    """Serialize groups; None if they have nodes outside of the region.

    Values passed between kernels only are numbered after all others.
    """
    numbers = numbered(placed)
    named = len(numbers)
    positions = {p.node: n for n, p in enumerate(placed)}
    kernels: dict[AnyKernel, int] = {}
    rows: list[tuple[object, ...]] = []
    for group in groups:
        if any(node not in positions for node in group.nodes):
            return None
        nodes = [positions[n] for n in group.nodes]
        if group.kernel is None:
            rows.append((nodes, None))
            continue
        for value in (*group.inputs, *group.outputs):
            numbers.setdefault(value, len(numbers))
        index = kernels.setdefault(group.kernel, len(kernels))
        values = [[numbers[v] for v in side] for side in (group.inputs, group.outputs)]
        rows.append((nodes, index, *values))
    extra = [str(value.type) for value in list(numbers)[named:]]
    content = {"kernels": [*map(kernel_text, kernels)], "values": extra, "groups": rows}
    # Level 1: entries are written while a user waits for the compilation.
    return zlib.compress(json.dumps(content, separators=(",", ":")).encode(), 1)


def restored(data: bytes, nodes: Sequence[StackedNode], sizes: Sequence[int]) -> list[Group]:
    """Deserialize groups for nodes with the same fingerprint and target.

    Malformed entries raise an error.
    """
    try:
        return _Restoring(nodes, sizes, json.loads(zlib.decompress(data))).groups()
    except (zlib.error, ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
        raise _refused(str(error)) from error


def _refused(reason: str) -> WeftError:
    return WeftError(f"groups that are not of this program: {reason}", help="clear the cache")


@lru_cache(maxsize=1024)
def _kernel(text: str) -> AnyKernel:
    """Parse a kernel, cached: programs of one process share many."""
    return parse_kernel(text)


class _Restoring:
    """Restores the groups of an entry, tracking the stacks of values."""

    def __init__(self, nodes: Sequence[StackedNode], sizes: Sequence[int], content: Any) -> None:
        self.placed, self.sizes = nodes, sizes
        self.rows = content["groups"]
        self.kernels = [_kernel(text) for text in content["kernels"]]
        self.values = [*numbered(nodes), *(Value(parse_type(t)) for t in content["values"])]
        self.by_node = {p.node: p for p in nodes}
        self.shapes: dict[Value, tuple[int, ...]] = {}  # stack shapes, as far as known

    def groups(self) -> list[Group]:
        """All groups, in order."""
        return [self.group(*row) for row in self.rows]

    def group(
        self,
        positions: Sequence[int],
        index: int | None,
        inputs: Sequence[int] = (),
        outputs: Sequence[int] = (),
    ) -> Group:
        nodes = tuple([self.placed[n].node for n in positions])
        if index is None:
            (node,) = nodes
            return Group(nodes, None, (*node.operands, *free_variables(node)), node.results)
        kernel = self.kernels[index]
        read, stored = (tuple([self.values[n] for n in side]) for side in (inputs, outputs))
        # An entry is as old as the cache: kernels are checked against the types of this program,
        # not trusted.
        self.check(kernel, read, output=False)
        self.check(kernel, stored, output=True)
        return Group(nodes, kernel, read, stored)

    def check(self, kernel: AnyKernel, values: Sequence[Value], *, output: bool) -> None:
        """Raise if the values' stacks do not match the kernel's operands."""
        operands = [o for o in kernel.operands if o.output is output]
        for value, operand in zip(values, operands, strict=True):
            shape = self.shapes.get(value)
            if shape is None:
                shape = self.shapes[value] = self.shape(value, operand)
            if shape != operand.shape:
                raise _refused(f"kernel {kernel.name} takes {operand}, not {value.type}")

    def shape(self, value: Value, operand: Operand) -> tuple[int, ...]:
        """The shape of a value's stack; values passed between kernels take the first operand's."""
        type, mask = value.type, self.mask(value)
        if not isinstance(type, TensorType) or type.dtype is not operand.dtype:
            raise _refused(f"{operand} is not {type}")
        if mask is None:
            return operand.shape
        lead = [size if mask >> n & 1 else 1 for n, size in enumerate(self.sizes)]
        return (*lead, *type.sizes)

    def mask(self, value: Value) -> int | None:
        """The mask of a value; None for one passed between kernels only."""
        made = None if value.node is None else self.by_node.get(value.node)
        return made.made[value.index] if made is not None else self.given.get(value)

    @cached_property
    def given(self) -> dict[Value, int]:
        """The masks of all values that nodes read."""
        found: dict[Value, int] = {}
        for p in self.placed:
            found.update(zip(p.node.operands, p.given))  # noqa: B905  # it is quicker
        return found
