"""Warnings about shardings: replicated arguments, padding, and sizes that do not divide."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from weft.explain.edits import argument_groups, mesh_in
from weft.explain.state import CARRIES
from weft.ir.location import Location
from weft.ir.module import Module, Node, Value
from weft.ir.types import TensorType
from weft.ir.write import SHARDINGS
from weft.machine import bytes_text
from weft.mesh import Sharding
from weft.mesh.algebra import Axes, total_size
from weft.ops.distributed.collective import AllReduce
from weft.ops.elementwise.pointwise import Add
from weft.ops.shape import Reshape
from weft.records import dataclass

_LARGE = 0.05  # the share of a device's memory from which replication is worth a warning


@dataclass(frozen=True, slots=True)
class SendWarning:
    """A warning: replication, padding, imbalance, tiny collectives or exposed latency."""

    kind: str
    text: str
    loc: Location | None = None


def indivisible(sharded: Module, sent: Collection[str]) -> Iterator[SendWarning]:
    """Reshapes whose dims the pieces of an axis do not fit, such as heads; `sent` are axes."""
    dims: dict[str, dict[str, Location]] = {}
    for node in sharded.nodes():
        if not isinstance(node.op, Reshape):
            continue
        (operand,), (result,) = node.operands, node.results
        for merged, parted in ((operand, result), (result, operand)):
            for axes, pieces, dim, size in _cut(sharded, merged, parted):
                # Where the size divides the pieces, they go on inside of the next dim, and matter
                # only if a part of the axis is sent.
                parts = {name.partition(":")[0] for name in sent if ":" in name or pieces % size}
                if any(axis.name in parts for axis in axes):
                    text = _indivisible_text(axes, pieces, dim, size)
                    dims.setdefault(text, {}).setdefault(line_text(node.loc), node.loc)
    for text, places in dims.items():
        yield SendWarning(
            "indivisible", f"{', '.join(places)}: {text}", next(iter(places.values()))
        )


def _indivisible_text(axes: Axes, pieces: int, dim: int, size: int) -> str:
    names = " and ".join(f"`{axis.name}`" for axis in axes)
    fits = [str(n) for n in range(2, size + 1) if size % n == 0]
    return (
        f"{names} makes {pieces} pieces, which do not divide dim {dim} of size {size}, so they "
        f"are sent; sizes that divide it are {', '.join(fits)}"
    )


def _cut(sharded: Module, merged: Value, parted: Value) -> Iterator[tuple[Axes, int, int, int]]:
    """Axes of dims that a reshape parts, their pieces, and the first part that they do not fit."""
    table = sharded.tables.get(SHARDINGS, {})
    sharding, whole, part = table.get(merged), merged.type, parted.type
    if not (
        isinstance(sharding, Sharding)
        and isinstance(whole, TensorType)
        and isinstance(part, TensorType)
    ):
        return
    mesh = sharding.resolve(sharded.meshes)
    for dim, parts in _parts(whole.sizes, part.sizes):
        axes = sharding.dims[dim].axes if sharding.dims else ()
        pieces = total_size(axes, mesh)
        real = [n for n in parts if part.sizes[n] > 1]
        if pieces > 1 and len(real) > 1 and part.sizes[real[0]] % pieces:
            yield axes, pieces, real[0], part.sizes[real[0]]


def _parts(merged: Sequence[int], parted: Sequence[int]) -> Iterator[tuple[int, range]]:
    """The dims of `parted` that each dim of `merged` consists of, as far as they match."""
    at = 0
    for dim, size in enumerate(merged):
        start, product = at, 1
        while at < len(parted) and product < size:
            product *= parted[at]
            at += 1
        if product != size:
            return
        yield dim, range(start, at)


def replicated(module: Module, peak: int) -> Iterator[SendWarning]:
    """Large arguments that are whole on every device, as shares of a device's peak."""
    named = mesh_in(module)
    if named is None:
        return
    _, mesh = named
    for group in argument_groups(module):
        held = group.type.nbytes * len(group.numbers)
        if any(group.split) or held < _LARGE * max(peak, 1):
            continue
        yield SendWarning(
            "replication",
            f"{group.text} is whole on each of {mesh.size:,} devices: {bytes_text(held)}, "
            f"{held / max(peak, 1):.0%} of a device's peak",
            group.loc,
        )


def padded(module: Module) -> Iterator[SendWarning]:
    """Dims whose pieces are uneven: padded, and on some devices less or nothing."""
    named = mesh_in(module)
    if named is None:
        return
    _, mesh = named
    for group in argument_groups(module):
        for dim, (size, axes) in enumerate(zip(group.type.sizes, group.split, strict=True)):
            pieces = total_size(axes, mesh)
            if size % pieces == 0:
                continue
            piece = -(-size // pieces)
            waste = 1 - size / (piece * pieces)
            empty = pieces - -(-size // piece)
            yield SendWarning(
                "padding" if not empty else "imbalance",
                f"dim {dim} of {group.text} has size {size}, in {pieces} pieces of {piece}: "
                f"{waste:.0%} of the work is padding"
                + (f", and {empty} of {pieces} devices have nothing" if empty else ""),
                group.loc,
            )


def summed_twice(module: Module) -> Iterator[SendWarning]:
    """Sums over devices of what was summed over the same devices before, and only scaled since."""
    seen: set[str] = set()
    for node in module.nodes():
        groups = _sum_groups(node)
        if groups is None or line_text(node.loc) in seen:
            continue
        before = next(filter(None, map(_summed_before, node.operands)), None)
        if before is not None and _sum_groups(before) == groups:
            seen.add(line_text(node.loc))
            yield SendWarning(
                "summed twice",
                f"{line_text(node.loc)}: what is summed over devices here is equal on all of them, "
                f"as {line_text(before.loc)} has summed it: the sum is that many times too large "
                "(a mean stays as it is)",
                node.loc,
            )


def _sum_groups(node: Node) -> object:
    """The devices over which a node sums; None if it does not."""
    if not isinstance(node.op, AllReduce):
        return None
    # JAX puts open constraints into combiners, too.
    ops = [inner.op for inner in node.regions[0].nodes if inner.op.name not in CARRIES]
    return node.op.replica_groups if [type(op) for op in ops] == [Add] else None


def _summed_before(value: Value) -> Node | None:
    """The all_reduce that a value comes from by ops on it and constants alone."""
    while value.node is not None:
        node = value.node
        if _sum_groups(node) is not None:
            return node
        made = [v for v in node.operands if not _is_constant(v)]
        if len(made) != 1 or not (node.op.elementwise or node.op.name in CARRIES):
            return None
        (value,) = made
    return None


def _is_constant(value: Value) -> bool:
    node = value.node
    return node is not None and all(map(_is_constant, node.operands)) and not node.regions


def line_text(loc: Location) -> str:
    """`mlp.py:5`, or the name of what has no line."""
    line = loc.line
    return f"{line[0].rpartition('/')[2]}:{line[1]}" if line else loc.name or "?"
