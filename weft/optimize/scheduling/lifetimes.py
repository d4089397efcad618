"""How large values are, how long they are in use, and how many bytes that makes at once."""

from __future__ import annotations

from collections.abc import Collection

from weft.array.place_buffers import Span, most_alive
from weft.ir.module import Module, Node, Region, Value
from weft.ir.names import DONATED
from weft.ir.reading import last_reads
from weft.ir.types import FutureType, TensorType, TupleType, Type
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

_RENAMED = (Reshape, BitcastConvert, OptimizationBarrier, Annotation)
_ALIASES = (*_RENAMED, Tuple, GetTupleElement, AsyncDone)  # results have their operands' memory
_ONE_BY_ONE = (DynamicUpdateSlice, Scatter, While)  # result n may have the memory of operand n


def stored(type: TensorType) -> int:
    """The bytes that a tensor takes in memory, where a boolean takes a whole one."""
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
    """The last node that reads each value, itself or in its regions; results are read at the end.

    What an asynchronous start reads is in use until its done.
    """
    last = last_reads(region)
    last.update(dict.fromkeys(region.results, len(region.nodes)))
    starts = [node for node in region.nodes if node.regions and isinstance(node.op, AsyncStart)]
    for start in reversed(starts):
        ended = last.get(start.results[0], -1)
        for value in start.operands:
            last[value] = max(last[value], ended)
    return last


def live_bytes(module: Module, function: str) -> int:
    """An estimate of the most bytes that a function holds at once, node by node.

    What is only renamed shares memory; element by element, in an update of a slice and from round
    to round of a loop, a result takes the memory of an operand that nothing reads again. Tile plans
    the memory, when it knows which nodes become one kernel; a pass before that asks this.
    """
    main = module.function(function)
    attrs = main.arg_attrs or ((),) * len(main.body.args)
    kept = {v for v, a in zip(main.body.args, attrs, strict=True) if not DONATED & {*dict(a)}}
    return _Live(module).most(main.body, kept)


class _Live:
    """Counts live bytes, of functions that are called once."""

    def __init__(self, module: Module) -> None:
        self.module = module
        self.called: dict[str, int] = {}

    def most(
        self, region: Region, kept: Collection[Value] = (), outside: Collection[Value] = ()
    ) -> int:
        """The most bytes at once, but for values that are outside; `kept` ones stay to the end."""
        end, last = len(region.nodes), last_uses(region)
        for node in reversed(region.nodes):
            if isinstance(node.op, _ALIASES):
                until = max([last.get(value, -1) for value in node.results])
                last.update({v: max(last[v], until) for v in node.operands})
        home: dict[Value, Value] = {}  # whose memory a value has
        spans: dict[Value, list[int]] = {}  # size, begin and end
        inner: list[Span] = []
        for value in region.args:
            spans[value] = [_size(value), -1, end if value in kept else last.get(value, -1)]
        for at, node in enumerate(region.nodes):
            if isinstance(node.op, _ALIASES):
                if len(node.results) == len(node.operands):
                    pairs = zip(node.results, node.operands, strict=True)
                    home.update({value: home.get(given, given) for value, given in pairs})
                continue
            self.overwrite(node, at, home, spans)
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
        """End the operands whose memory results take before these begin."""
        one_by_one = isinstance(node.op, _ONE_BY_ONE)
        if not one_by_one and not node.op.elementwise:
            return
        for n, value in enumerate(node.results):
            for operand in node.operands[n : n + 1] if one_by_one else node.operands:
                span = spans.get(home.get(operand, operand))
                if span is not None and span[2] == at and _same_room(operand.type, value.type):
                    span[2] = at - 1
                    break

    def inside(self, node: Node) -> int:
        """What the regions of a node, or what it calls, need beyond its operands and results."""
        match node.op:
            case While():
                test, body = node.regions
                carried = sum(map(_size, body.args))
                return max(self.beyond(test), self.most(body) - carried)
            case Call(callee=name) | Composite(decomposition=name):
                if name not in self.called:
                    self.called[name] = 0  # of one that calls itself, which is refused later
                    self.called[name] = self.beyond(self.module.function(name).body)
                return self.called[name]
            case If() | Case() | Computation():
                return max([self.beyond(region) for region in node.regions], default=0)
        return 0

    def beyond(self, region: Region) -> int:
        """What a region needs beyond what it is given and gives."""
        return self.most(region, outside={*region.args, *region.results})


def _size(value: Value) -> int:
    return sum([stored(leaf) for leaf in leaves(value.type)])


def _same_room(given: Type, made: Type) -> bool:
    """Whether elements of one type can be replaced by those of another, one by one."""
    return (
        isinstance(given, TensorType)
        and isinstance(made, TensorType)
        and given.shape == made.shape
        and stored(given) == stored(made)
    )
