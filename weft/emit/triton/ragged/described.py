"""Ragged dots of half floats by persistent programs: bulk copies of tiles by tensor descriptors.

One program for each multiprocessor computes tile after tile. Rows of the left side beyond a group
are some other group's; they are multiplied, and not stored.
"""

from __future__ import annotations

from weft.emit.triton.emitted import GridLaunch
from weft.emit.triton.persistent import PROGRAMS
from weft.emit.triton.ragged.tiles import GROUPS, RaggedTiles, chunk_of
from weft.kernels.nest.ragged import LHS, RHS
from weft.kernels.single_node import SingleNode

_ALIGNED = 8  # elements of an address or a stride: 16 bytes
_TYPES = {"bf16", "f16"}
_LEAST = 128  # rows of a tile from which bulk copies pay off


def refuses_descriptors(tiles: RaggedTiles) -> str | None:
    """Why no tensor descriptors describe the sides of a ragged dot, or None if they do."""
    roles, b = tiles.roles, tiles.blocks
    if roles.mode != "free" or roles.outer or not tiles.is_dot:
        return "its rows are not in groups, or it has batches"
    if tiles.types[LHS].name not in _TYPES or tiles.is_wide or b.rows < _LEAST:
        return "it is small, too large, or of another type"
    if roles.groups + 1 > GROUPS or not roles.groups:
        return "it has too many groups"
    is_turned = roles.k.steps[RHS] == 1
    inner = roles.columns if not is_turned else roles.k
    outer = roles.k if not is_turned else roles.columns
    if roles.k.steps[LHS] != 1 or inner.steps[RHS] != 1:
        return "neither rows nor columns are contiguous"
    # A group's matrix follows the one before: its rows are rows of one tall matrix.
    if roles.group_steps[0] != outer.size * outer.steps[RHS]:
        return "the groups of the right side are not its outermost dim"
    steps = (roles.rows.steps[LHS], outer.steps[RHS])
    if any(step % _ALIGNED or step < inner.size for step in steps[1:]) or steps[0] % _ALIGNED:
        return "its strides are not aligned"
    # Beyond the sum there is the next group's matrix, which may hold infinities.
    return "its sum ends inside of a tile" if not is_turned and roles.k.size % b.depth else None


def by_descriptors(kernel: SingleNode) -> GridLaunch:
    """A ragged dot whose sides can be described."""
    tiles = RaggedTiles(kernel)
    roles, b = tiles.roles, tiles.blocks
    is_turned = roles.k.steps[RHS] == 1
    rows, columns, k = roles.rows, roles.columns, roles.k
    for name, number in (("lhs", 0), ("rhs", 1), ("sizes", 2), ("out", 3)):
        tiles.line(f"{name} = in{number}")
    tiles.read_sizes("0", chunk_of(roles.groups + 1), rows.size)
    tiles.read_spans("0", "0")
    _describe(tiles, "left", "lhs", (rows.size, k.size), rows.steps[LHS], (b.rows, b.depth))
    tall = (
        roles.groups * (columns.size if is_turned else k.size),
        (k if is_turned else columns).size,
    )
    block = (b.columns, b.depth) if is_turned else (b.depth, b.columns)
    step = columns.steps[RHS] if is_turned else k.steps[RHS]
    _describe(tiles, "right", "rhs", tall, step, block)
    programs = min(tiles.most, PROGRAMS)
    tiles.line(
        f"for tile in tl.range(tl.program_id(0), p.bound(p.sum(tiles).to(tl.int32)), {programs}):"
    )
    tiles.depth += 1
    tiles.find("=")
    tiles.place_rows()
    tiles.begin_tile()
    tiles.line(f"for begin in range(p.bound(near), {k.size}, {b.depth}):")
    tiles.depth += 1
    tiles.line("a = left.load([start + m0, begin])")
    if is_turned:
        tiles.line(f"b = right.load([group * {columns.size} + n0, begin]).T")
    else:
        tiles.line(f"b = right.load([group * {k.size} + begin, n0])")
    tiles.line("total = p.dot(a, b, total)")
    tiles.depth -= 1
    tiles.store()
    tiles.depth -= 1
    return tiles.finished(programs)


def _describe(
    tiles: RaggedTiles, name: str, base: str, shape: tuple[int, int], step: int,
    block: tuple[int, int],
) -> None:  # fmt: skip
    """The descriptor of a matrix of contiguous rows."""
    sizes = f"[{shape[0]}, {shape[1]}], [{step}, 1], [{block[0]}, {block[1]}]"
    tiles.line(f"{name} = tl.make_tensor_descriptor({base}, {sizes})")
