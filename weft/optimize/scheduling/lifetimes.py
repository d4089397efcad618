"""Sizes and live ranges of values, and an estimate of peak memory."""

from __future__ import annotations

from collections.abc import Collection

from weft.array.place_buffers import Span, most_alive
from weft.ir.module import Module, Node, Region, Value
from weft.ir.names import DONATED
from weft.ir.types import FutureType, TensorType, TupleType, Type
from weft.ir.uses import last_reads
from weft.ops.control import (
    AsyncDone,
    AsyncStart,
    Call,
    Case,
    Composite,
    GetTupleElement,
    If,
    OptimizationBarrier,
    Tuple,
    While,
)
from weft.ops.distributed.sharding import Annotation, Computation
from weft.ops.scatter import Scatter
from weft.ops.shape import BitcastConvert, Constant, Reshape
from weft.ops.slicing import DynamicUpdateSlice

_RENAMED = (Reshape, BitcastConvert, OptimizationBarrier, Annotation)  # each result is an operand
_ALIASES = (*_RENAMED, Tuple, GetTupleElement, AsyncDone)  # results alias their operands
_ONE_BY_ONE = (DynamicUpdateSlice, Scatter, While)  # result n may have the memory of operand n


def stored_bytes(type: TensorType) -> int:
    """The bytes of a tensor in memory; a boolean takes a byte."""
    return type.size if type.dtype.kind == "bool" else type.nbytes


def leaves(type: Type) -> list[TensorType]:
    """The tensors of a type."""
    match type:
        case TensorType():
            return [type]
        case TupleType() | FutureType():
            return [leaf for part in type.types for leaf in leaves(part)]
    return []


def last_uses(region: Region) -> dict[Value, int]:
    """The last use of each value, by a node or its regions; results are used at the end.

    Operands of an asynchronous start are live until its done.
    """
    last = last_reads(region)
    last.update(dict.fromkeys(region.results, len(region.nodes)))
    starts = [node for node in region.nodes if node.regions and isinstance(node.op, AsyncStart)]
    for start in reversed(starts):
        ended = last.get(start.results[0], -1)
        for value in start.operands:
            # The transfer reads them until it is done: their memory must not be reused meanwhile.
            last[value] = max(last[value], ended)
    return last


def live_bytes(module: Module, function: str) -> int:
    """An estimate of a function's peak of live bytes, node by node.

    Aliases share memory; elementwise ops, updates of slices and loop iterations reuse the memory of
    operands that die there. Tile plans the actual memory, once nodes are fused into kernels; passes
    before that use this estimate.
    """
    main = module.function(function)
    attrs = main.arg_attrs or ((),) * len(main.body.args)
    kept = {v for v, a in zip(main.body.args, attrs, strict=True) if not DONATED & {*dict(a)}}
    return _Live(module).most(main.body, kept)


class _Live:
    """Counts live bytes; each called function once."""

    def __init__(self, module: Module) -> None:
        self.module = module
        self.called: dict[str, int] = {}

    def most(
        self, region: Region, outlive: Collection[Value] = (), outside: Collection[Value] = ()
    ) -> int:
        """The peak of live bytes without `outside` values; `outlive`: live to the end."""
        end, last = len(region.nodes), last_uses(region)
        for node in reversed(region.nodes):
            if isinstance(node.op, _ALIASES):
                until = max([last.get(value, -1) for value in node.results])
                last.update({v: max(last[v], until) for v in node.operands})
        home: dict[Value, Value] = {}  # the value whose memory a value shares
        spans: dict[Value, list[int]] = {}  # size, begin and end
        inner: list[Span] = []
        for value in region.args:
            spans[value] = [_size(value), -1, end if value in outlive else last.get(value, -1)]
        for at, node in enumerate(region.nodes):
            if isinstance(node.op, _ALIASES):
                if len(node.results) == len(node.operands):
                    pairs = zip(node.results, node.operands, strict=True)
                    home.update({value: home.get(given, given) for value, given in pairs})
                continue
            self.overwrite(node, at, home, spans)
            # Constants are loaded with the program and are never freed; a splat is computed where
            # it is read.
            fixed = isinstance(node.op, Constant) and not node.op.value.is_splat
            for value in node.results:
                until = end if fixed else last.get(value, at)
                spans[value] = [_size(value), -1 if fixed else at, until]
            inner.append(Span(self.inside(node), at, at))
        found = [Span(*span) for value, span in spans.items() if value not in outside]
        return most_alive([*found, *inner])

    def overwrite(
        self, node: Node, at: int, home: dict[Value, Value], spans: dict[Value, list[int]]
    ) -> None:
        """End the live ranges of operands whose memory the results reuse."""
        one_by_one = isinstance(node.op, _ONE_BY_ONE)
        if not one_by_one and not node.op.elementwise:
            return
        for n, value in enumerate(node.results):
            for operand in node.operands[n : n + 1] if one_by_one else node.operands:
                span = spans.get(home.get(operand, operand))
                if span is not None and span[2] == at and _same_size(operand.type, value.type):
                    span[2] = at - 1
                    break

    def inside(self, node: Node) -> int:
        """The bytes that a node's regions or callees need beyond its operands and results."""
        match node.op:
            case While():
                test, body = node.regions
                carried = sum(map(_size, body.args))
                return max(self.beyond(test), self.most(body) - carried)
            case Call(callee=name) | Composite(decomposition=name):
                if name not in self.called:
                    self.called[name] = 0  # recursion, which is refused later
                    self.called[name] = self.beyond(self.module.function(name).body)
                return self.called[name]
            case If() | Case() | Computation():
                return max([self.beyond(region) for region in node.regions], default=0)
        return 0

    def beyond(self, region: Region) -> int:
        """The bytes that a region needs beyond its arguments and results."""
        return self.most(region, outside={*region.args, *region.results})


def _size(value: Value) -> int:
    return sum([stored_bytes(leaf) for leaf in leaves(value.type)])


def _same_size(operand_type: Type, result_type: Type) -> bool:
    """Whether elements of one type can overwrite those of another in place."""
    return (
        isinstance(operand_type, TensorType)
        and isinstance(result_type, TensorType)
        and operand_type.shape == result_type.shape
        and stored_bytes(operand_type) == stored_bytes(result_type)
    )
