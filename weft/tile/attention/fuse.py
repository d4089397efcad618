"""Fusion of attention: match it in a region, forward and backward, and build kernels."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, replace

from weft.ir.module import Node, Value, tensor_of
from weft.ir.types import F32, F64, TensorType
from weft.kernels.attention import Access, Attention, AttentionMask, Gradients
from weft.kernels.digest import content_digest
from weft.kernels.group import Group
from weft.kernels.kernel import Operand
from weft.kernels.stacked_node import StackedNode
from weft.ops.attention import Attention as Composite
from weft.ops.contract import Dot, DotGeneral
from weft.ops.elementwise.convert import Convert
from weft.records import dataclass
from weft.tile.attention.backward import (
    Backward,
    GradientStore,
    RowOperand,
    find_backward,
    recomputed,
)
from weft.tile.attention.composite import named_attention
from weft.tile.attention.forward import Forward, find_forward
from weft.tile.attention.reading import Place, RegionNodes
from weft.tile.drafts.index import factors_of
from weft.tile.drafts.views import VIEWS


def attention_groups(
    nodes: Sequence[StackedNode],
    sizes: tuple[int, ...],
    results: Sequence[Value],
    *,
    excess_precision: bool = True,
) -> list[Group]:
    """The groups of nodes that are attention; their intermediates have no other readers."""
    groups = _search(RegionNodes(nodes, sizes, results, excess_precision=excess_precision))
    # Matches are found one by one, and a later one may look through a value that an earlier one no
    # longer stores.
    if _reads_inside(groups):
        # Values of earlier matches are read from memory, not looked through.
        kept = [v for group in groups for v in group.outputs]
        groups = _search(
            RegionNodes(nodes, sizes, results, kept, excess_precision=excess_precision)
        )
    return [] if _reads_inside(groups) else groups


def _search(program: RegionNodes) -> list[Group]:
    matches: list[Group] = []
    nodes: set[Node] = set()
    for node in program.order:
        if node in nodes:
            continue
        named = named_attention(program, node)
        forward = named or find_forward(program, node)
        if forward is None or nodes & {*forward.nodes}:
            continue
        groups = _named_group(program, named) if named else _groups(program, forward)
        nodes |= {n for group in groups for n in group.nodes}
        matches += groups
    return matches


def _reads_inside(groups: Sequence[Group]) -> bool:
    """Whether a group reads an intermediate of another."""
    given = {v for group in groups for v in group.outputs}
    inside = {v for group in groups for n in group.nodes for v in n.results} - given
    return any(v in inside for group in groups for v in group.inputs)


def _groups(program: RegionNodes, forward: Forward) -> list[Group]:
    """The kernels of one attention; none if its probabilities have other readers."""
    drawn = _Drawing(program, forward)
    if drawn.access(forward.out, forward.query, forward.column) is None:
        return []
    nodes = _inner(program, forward.nodes)
    private = _is_private(program, nodes, [forward.out.value])
    if not _may_be_wide(program, nodes, forward.out.value):
        return []
    # A program that rematerializes (jax.checkpoint) computes the scores a second time for its
    # gradients: these are the same attention, whose backward kernel recomputes scores anyway.
    again = recomputed(program, forward) if private else forward
    backward = None if again is None else find_backward(program, again)
    if backward is not None:
        gradients = [w.value for w in (backward.dq, backward.dk, backward.dv)]
        every = _inner(program, {*forward.nodes} | backward.nodes)
        rounded = [v for n in every - nodes for v in n.results if program.is_rounded(v)]
        inside = _is_private(program, every, [forward.out.value, *gradients])
        if inside and {*rounded} <= {*gradients}:
            first = _forward_group(drawn, lse=True)
            second = first and _backward_group(_Drawing(program, forward), first, backward)
            if first and second:
                rest = _with_nodes(program, second, every - nodes, every)
                return [_with_nodes(program, first, nodes), rest]
    group = _forward_group(drawn, lse=False) if private else None
    return [] if group is None else [_with_nodes(program, group, nodes)]


def _may_be_wide(program: RegionNodes, nodes: Iterable[Node], out: Value) -> bool:
    """Whether no intermediate must be rounded before it is read.

    f16 probabilities that only contractions read may keep more bits: they are at most 1, and are
    normalized after the contraction.
    """
    inside = [v for node in nodes for v in node.results if v is not out and program.is_rounded(v)]
    if not program.excess_precision:
        return not inside
    return all(tensor_of(v).dtype.name == "f16" and _feeds_products(program, v) for v in inside)


def _feeds_products(program: RegionNodes, value: Value) -> bool:
    """Whether a value is a cast, or a view of one, that only contractions read."""
    node = value.node
    while node is not None and type(node.op) in VIEWS:
        node = node.operands[0].node
    if node is None or not isinstance(node.op, Convert):
        return False
    return all(
        isinstance(r.op, DotGeneral | Dot) or type(r.op) in VIEWS
        for r in program.readers.get(value, ())
    )


def _inner(program: RegionNodes, nodes: Iterable[Node]) -> set[Node]:
    """The contractions among nodes, and their dependents; masks and the like are neither."""
    inside: set[Node] = set()
    for node in sorted(nodes, key=program.order.__getitem__):
        if isinstance(node.op, DotGeneral | Dot) or any(v.node in inside for v in node.operands):
            inside.add(node)
    return inside


def _with_nodes(
    program: RegionNodes, group: Group, nodes: set[Node], readers: set[Node] | None = None
) -> Group:
    """The group with its nodes in order, and those without other readers."""
    inside, every = {*nodes}, {*nodes} | (readers or set())
    for node in sorted({*group.nodes} - every, key=program.order.__getitem__, reverse=True):
        readers_of = [program.readers.get(v, []) for v in node.results]
        needed = any(v in program.results or v in group.inputs for v in node.results)
        if any(readers_of) and not needed and all(r in every for x in readers_of for r in x):
            inside.add(node)
            every.add(node)
    return replace(group, nodes=tuple(sorted(inside, key=program.order.__getitem__)))


def _named_group(program: RegionNodes, named: Forward) -> list[Group]:
    """The kernel of a composite with its private producers; several may share a mask."""
    group = _forward_group(_Drawing(program, named), lse=named.lse is not None)
    if group is None:
        return []
    inside: set[Node] = set()
    for node in sorted(group.nodes, key=program.order.__getitem__):
        if isinstance(node.op, Composite) or any(v.node in inside for v in node.operands):
            inside.add(node)
    return [_with_nodes(program, group, inside)]


def _is_private(program: RegionNodes, nodes: Iterable[Node], outputs: Sequence[Value]) -> bool:
    """Whether the nodes' values have no other readers, except their outputs."""
    inside = {*nodes}
    made = [v for n in inside if n.operands for v in n.results if v not in outputs]
    return not any(
        v in program.results or any(r not in inside for r in program.readers.get(v, ()))
        for v in made
    )


@dataclass
class _Drawing:
    """Collects a kernel's operands on demand, with their strides."""

    program: RegionNodes
    forward: Forward
    inputs: dict[Value, int] = field(default_factory=dict)
    outer: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        f = self.forward
        used = factors_of(f.out.at) - {f.query, f.column}
        shared = used - factors_of(f.k.at) - factors_of(f.v.at)
        devices = f.reader.draft.devices
        # Heads that share keys and values come innermost: they follow each other while both are in
        # cache.
        order = sorted(used, key=lambda n: (n in shared, n not in devices, n))
        self.outer = tuple(order)

    def number(self, value: Value) -> int:
        """The operand number of an input."""
        return self.inputs.setdefault(value, len(self.inputs))

    def strided(
        self, number: int, strides: Mapping[int, int], row: int | None, column: int, offset: int = 0
    ) -> Access | None:
        """An access from the strides of factors and the column stride."""
        if any(f not in self.outer and f != row for f in strides):
            return None
        outer = tuple([strides.get(f, 0) for f in self.outer])
        return Access(number, outer, 0 if row is None else strides.get(row, 0), column, offset)

    def access(self, place: Place, row: int | None, column: int | None) -> Access | None:
        """An input as the forward reads it."""
        offset, strides = self.forward.reader.strides(place)
        along = 0 if column is None else strides.pop(column, 0)
        return self.strided(self.number(place.value), strides, row, along, offset)

    def rows(self, rows: RowOperand, row: int | None) -> Access | None:
        """An input as the backward reads it."""
        return self.strided(self.number(rows.value), rows.strides, row, rows.column, rows.offset)

    def operands(self, outputs: Sequence[Operand]) -> tuple[Operand, ...]:
        """The operands: inputs, then outputs."""
        return (*[self.input(v) for v in self.inputs], *outputs)

    def input(self, value: Value) -> Operand:
        """An input."""
        return Operand(tensor_of(value).dtype, self.program.shape(value))

    def output(self, value: Value) -> Operand:
        """An output."""
        return Operand(tensor_of(value).dtype, self.program.shape(value), output=True)

    def lse(self) -> tuple[Value, Operand, tuple[int, ...]]:
        """The logsumexp: a value without a node, its stack, and its strides by outer dim."""
        f, size = self.forward, self.forward.reader.draft.size
        lead = len(self.program.sizes)
        heads = [[n for n, _ in e[1]] for e in f.out.at[:lead]]
        own = [n for n in self.outer if not any(n in h for h in heads)]
        order = [h[0] if h else None for h in heads] + [*own, f.query]
        shape = tuple([1 if n is None else size(n) for n in order])
        strides: dict[int | None, int] = {}
        step = 1
        for n in reversed(order):
            strides[n] = step
            step *= 1 if n is None else size(n)
        # Never narrower: exp(score - lse) in bf16 would lose the probabilities' relative precision.
        held = F64 if tensor_of(f.q.value).dtype is F64 else F32
        value = Value(TensorType(shape[lead:], held))
        return value, Operand(held, shape, output=True), tuple([strides[n] for n in self.outer])


def _forward_group(drawn: _Drawing, *, lse: bool) -> Group | None:
    """The kernel of a matched attention; None if its strides do not fit."""
    f = drawn.forward
    kernel = _plain(drawn)
    if kernel is None:
        return None
    value = f.out.value
    outputs, values = [drawn.output(value)], [value]
    out = drawn.access(f.out, f.query, f.column)
    # `access` has numbered it as an input; outputs are numbered behind all inputs.
    del drawn.inputs[value]
    assert out is not None, "the forward kernel has an output"
    count = len(drawn.inputs)
    if f.lse is not None:
        at = drawn.access(f.lse, f.query, None)
        assert at is not None, "it varies as out does"
        del drawn.inputs[f.lse.value]
        outputs.append(drawn.output(f.lse.value))
        values.append(f.lse.value)
        kernel = replace(kernel, lse=replace(at, operand=count + 1))
    elif lse:
        made, operand, strides = drawn.lse()
        outputs.append(operand)
        values.append(made)
        kernel = replace(kernel, lse=Access(count + 1, strides, 1))
    kernel = replace(kernel, operands=drawn.operands(outputs), out=replace(out, operand=count))
    return Group(f.nodes, _named(kernel), tuple(drawn.inputs), tuple(values))


def _plain(drawn: _Drawing) -> Attention | None:
    """The common part of forward and backward, with the inputs as operands."""
    f = drawn.forward
    drawn.inputs.clear()
    q = drawn.access(f.q, f.query, f.depth)
    k, v = drawn.access(f.k, f.key, f.depth), drawn.access(f.v, f.key, f.column)
    if q is None or k is None or v is None:
        return None
    bias = mask = None
    if f.bias is not None:
        bias = drawn.access(f.reader.through(f.bias), f.query, f.key)
    if f.mask is not None:
        access = drawn.access(f.reader.through(f.mask.where), f.query, f.key)
        mask = None if access is None else AttentionMask(access, f.mask.fill, f.mask.when)
    if (f.bias is not None and bias is None) or (f.mask is not None and mask is None):
        return None
    size = f.reader.draft.size
    return Attention(
        "attention",
        tuple([size(n) for n in drawn.outer]),
        1 if f.query is None else size(f.query),
        size(f.key),
        size(f.depth),
        size(f.column),
        (),
        q,
        k,
        v,
        out=q,
        scale=f.scale,
        window=f.window,
        mask=mask,
        bias=bias,
        empty=f.empty,
        bias_scale=f.scores.bias_scale,
        softcap=f.softcap,
    )


def _backward_group(drawn: _Drawing, first: Group, backward: Backward) -> Group | None:
    """The kernel of the gradients, which reads the forward kernel's outputs."""
    f, kernel = drawn.forward, _plain(drawn)
    assert isinstance(first.kernel, Attention) and first.kernel.lse is not None
    out, dout = drawn.access(f.out, f.query, f.column), drawn.rows(backward.dout, f.query)
    if kernel is None or out is None or dout is None:
        return None
    lse_value = first.outputs[1]
    lse = replace(first.kernel.lse, operand=drawn.number(lse_value))
    written: list[tuple[GradientStore, int | None]] = [
        (backward.dq, f.query),
        (backward.dk, f.key),
        (backward.dv, f.key),
    ]
    count = len(drawn.inputs)
    places = [
        drawn.strided(count + n, w.strides, row, w.column) for n, (w, row) in enumerate(written)
    ]
    if any(p is None for p in places):
        return None
    dq, dk, dv = (p for p in places if p is not None)
    if [not s for s in dk.outer] != [not s for s in dv.outer] or not all(dq.outer):
        # keys and values must be shared in the same way, and every query has its own gradient
        return None
    gradients = Gradients(dout, dq, dk, dv, None, backward.dq.scale, backward.dk.scale)
    outputs = [drawn.output(w.value) for w, _ in written]
    stack = replace(first.kernel.operands[first.kernel.lse.operand], output=False)
    read = [stack if v is lse_value else drawn.input(v) for v in drawn.inputs]
    kernel = replace(kernel, operands=(*read, *outputs), out=out, lse=lse, gradients=gradients)
    nodes = sorted(backward.nodes - {*f.nodes}, key=drawn.program.order.__getitem__)
    values = tuple([w.value for w, _ in written])
    return Group(tuple(nodes), _named(kernel), tuple(drawn.inputs), values)


def _named(kernel: Attention) -> Attention:
    """The kernel with a unique name."""
    digest = content_digest(kernel)
    way = "attention" if kernel.gradients is None else "attention_backward"
    return replace(kernel, name=f"{way}_{digest}")
