"""Common parts of folds: loop-carried values, initial values, horizontal folds of lanes."""

from __future__ import annotations

from collections.abc import Sequence

from weft.emit.llvm.single.region import converted, inline
from weft.emit.llvm.writer import storage
from weft.emit.llvm.writer.storage import Held
from weft.emit.llvm.writer.vector import Vector, Vectors
from weft.ir.module import Region
from weft.kernels.single_node import SingleNode
from weft.ops.combiners import BY_OP


def is_commutative(region: Region) -> bool:
    """Whether the fold's order is irrelevant, as far as known."""
    return all(name in BY_OP for name in region.body.combiners)


def carried(values: Sequence[Held]) -> list[tuple[str, str]]:
    """Values in the form of loop-carried variables: type and text of each part."""
    return [(part.type, part.text) for held in values for part in held]


def texts(values: Sequence[Held]) -> list[str]:
    """Values as texts for the next iteration."""
    return [part.text for held in values for part in held]


def grouped(variables: Sequence[str], like: Sequence[Held]) -> list[Held]:
    """Loop-carried variables as values."""
    left = list(variables)
    return [tuple([Vector(left.pop(0), p.kind, p.width) for p in held]) for held in like]


def read_inits(
    v: Vectors, kernel: SingleNode, buffers: Sequence[str], offsets: Sequence[str]
) -> list[Held]:
    """The initial values, which follow the inputs, broadcast and in the results' types."""
    count, inits = len(kernel.outputs), []
    for n, out in enumerate(kernel.outputs, count):
        stored_dtype = kernel.operands[n].dtype
        held = storage.load_splat(v, buffers[n], offsets[n], stored_dtype)
        inits.append(converted(v, held, stored_dtype, out.dtype))
    return inits


def read_inputs(
    v: Vectors, kernel: SingleNode, buffers: Sequence[str], offsets: Sequence[str]
) -> list[Held]:
    """Contiguous elements of every input, in the results' types."""
    inputs = []
    for n, out in enumerate(kernel.outputs):
        stored_dtype = kernel.operands[n].dtype
        held = storage.load(v, buffers[n], offsets[n], stored_dtype)
        inputs.append(converted(v, held, stored_dtype, out.dtype))
    return inputs


def write_results(
    v: Vectors,
    kernel: SingleNode,
    values: Sequence[Held],
    buffers: Sequence[str],
    offsets: Sequence[str],
) -> None:
    """Store contiguous elements of every result, which follow inputs and initial values."""
    for n, (held, out) in enumerate(zip(values, kernel.outputs, strict=True), 2 * len(values)):
        storage.store(v, held, buffers[n], offsets[n], out.dtype)


def in_every_lane(v: Vectors, values: Sequence[Held]) -> list[Held]:
    """Scalars broadcast to vectors."""
    return [tuple([v.splat(part) for part in held]) for held in values]


def shuffled(v: Vectors, part: Vector, order: list[int]) -> Vector:
    """A permutation of the lanes."""
    return part if v.width == 1 else v.shuffle(part, part, order)


def first_lane(v: Vectors, values: Sequence[Held]) -> list[Held]:
    """The first lanes as scalars."""
    if v.width == 1:
        return list(values)
    return [
        tuple([Vector(v.code.let(f"extractelement {p.typed}, i64 0"), p.kind) for p in held])
        for held in values
    ]


def fold_lanes(v: Vectors, region: Region, values: list[Held]) -> list[Held]:
    """All lanes folded into one, in order."""
    distance = 1
    while distance < v.width:
        # The last lanes fold more than they should, which never reaches lane 0.
        order = [min(n + distance, v.width - 1) for n in range(v.width)]
        other = [tuple([shuffled(v, part, order) for part in held]) for held in values]
        values = inline(v, region, [*values, *other])
        distance *= 2
    return first_lane(v, values)
