"""Find attention in a region, and make it one kernel."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace

from weft.ir.module import Node, Value
from weft.kernels.attention import Access, Attention, Mask
from weft.kernels.group import Group, Placed
from weft.kernels.kernel import Operand
from weft.tile.attention_forward import Forward, find_forward
from weft.tile.attention_reading import Place, Program
from weft.tile.draft import tensor
from weft.tile.index import factors_of


def attention_groups(
    placed: Sequence[Placed], sizes: tuple[int, ...], results: Sequence[Value]
) -> list[Group]:
    """The groups of nodes that are attention; nothing else reads what they make in between."""
    program = Program(placed, sizes, results)
    found: list[Group] = []
    taken: set[Node] = set()
    for p in placed:
        forward = find_forward(program, p.node)
        if forward is None or taken & {*forward.nodes} or not private(program, forward):
            continue
        group = forward_group(program, forward)
        if group is not None:
            taken |= {*forward.nodes}
            found.append(group)
    return found


def private(program: Program, forward: Forward) -> bool:
    """Whether what lies between is read by nobody else."""
    inside = {*forward.nodes}
    made = [v for n in forward.nodes if n.operands for v in n.results if v is not forward.out.value]
    return not any(
        v in program.results or any(r not in inside for r in program.readers.get(v, ()))
        for v in made
    )


def forward_group(program: Program, found: Forward) -> Group | None:
    """The kernel of attention that was found; None if its strides do not fit."""
    outer = _outer(found)
    inputs: dict[Value, int] = {}

    def access(place: Place, row: int | None, column: int | None) -> Access | None:
        offset, strides = found.reader.strides(place)
        rest = {f for f in strides if f not in outer and f not in (row, column)}
        if rest:
            return None
        number = inputs.setdefault(place.value, len(inputs))
        return Access(
            number,
            tuple([strides.get(f, 0) for f in outer]),
            0 if row is None else strides.get(row, 0),
            0 if column is None else strides.get(column, 0),
            offset,
        )

    f, query = found, found.query
    q, k, v = access(f.q, query, f.depth), access(f.k, f.key, f.depth), access(f.v, f.key, f.column)
    bias = mask = None
    if f.scores.bias is not None:
        bias = access(f.reader.through(f.scores.bias), query, f.key)
    if f.mask is not None:
        mask = access(f.reader.through(f.mask.where), query, f.key)
    operands = [Operand(tensor(x).dtype, program.shape(x)) for x in inputs]
    out = access(f.out, query, f.column)
    if q is None or k is None or v is None or out is None:
        return None
    if (f.scores.bias is not None and bias is None) or (f.mask is not None and mask is None):
        return None
    value = f.out.value
    operands.append(Operand(tensor(value).dtype, program.shape(value), output=True))
    size = f.reader.draft.size
    kernel = Attention(
        "attention",
        tuple([size(n) for n in outer]),
        1 if query is None else size(query),
        size(f.key),
        size(f.depth),
        size(f.column),
        tuple(operands),
        q,
        k,
        v,
        out,
        scale=f.scale,
        window=f.window,
        mask=None if mask is None or f.mask is None else Mask(mask, f.mask.fill, f.mask.when),
        bias=bias,
        empty=f.empty,
    )
    listed = tuple([x for x in inputs if x is not value])
    return Group(f.nodes, named(kernel), listed, (value,))


def _outer(found: Forward) -> tuple[int, ...]:
    """The outer dims: devices first, those that share keys and values last."""
    used = factors_of(found.out.at) - {found.query, found.column}
    shared = used - factors_of(found.k.at) - factors_of(found.v.at)
    devices = found.reader.draft.devices
    return tuple(sorted(used, key=lambda f: (f in shared, f not in devices, f)))


def named(kernel: Attention) -> Attention:
    """The kernel with a name that tells it from others."""
    digest = hashlib.sha256(repr(kernel).encode()).hexdigest()[:8]
    return replace(kernel, name=f"attention_{digest}")
