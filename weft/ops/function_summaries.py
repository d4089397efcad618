"""One cached walk over every node of a function, shared by several analyses."""

from __future__ import annotations

from collections import Counter
from functools import cache
from itertools import chain
from typing import NamedTuple

from weft.ir.module import Node, Region, Value
from weft.ir.op import Op
from weft.ops.control import Call, Composite, RunParallel
from weft.ops.custom_calls.custom import CustomCall
from weft.ops.distributed.sharding import ShardingGroup

# Fields of ops that hold shardings.
_FIELDS = ("sharding", "out_sharding", "in_shardings", "out_shardings")
# Fields of ops that hold function names.
NAMING = {
    Call: "callee",
    Composite: "decomposition",
    CustomCall: "called_computations",
    RunParallel: "programs",
}


@cache
def sharding_fields(op: type[Op]) -> tuple[str, ...]:
    """The fields of an op that hold shardings."""
    return tuple(name for name in _FIELDS if name in op.codecs)


@cache
def _is_notable(op: type[Op]) -> bool:
    return op in NAMING or op is ShardingGroup or bool(sharding_fields(op))


class FunctionSummary(NamedTuple):
    """The facts of a function body."""

    counts: dict[Value, int]  # the number of uses of each value, by nodes and by terminators
    # The nodes with function names, with shardings, and with attributes; outer before inner.
    notable: list[Node]


class FunctionSummaries(dict[Region, FunctionSummary]):
    """The summaries of functions, each computed on first use."""

    def __missing__(self, body: Region) -> FunctionSummary:
        reads: list[tuple[Value, ...]] = []
        notable: list[Node] = []

        def see(region: Region) -> None:
            for node in region.nodes:
                reads.append(node.operands)
                if node.attrs or _is_notable(type(node.op)):
                    notable.append(node)
                for inner in node.regions:
                    see(inner)
            reads.append(region.results)

        see(body)
        # Counted at once, at the end: a Counter of an iterable counts in C.
        made = self[body] = FunctionSummary(Counter(chain.from_iterable(reads)), notable)
        return made
