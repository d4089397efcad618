"""How large values are, how long they are in use, and which arguments may be overwritten."""

from __future__ import annotations

from typing import NamedTuple

from weft.ir.module import Function, Region, Value
from weft.ir.names import ALIASED, DONOR
from weft.ir.op import Op
from weft.ir.reading import last_reads
from weft.ir.types import FutureType, TensorType, TupleType, Type
from weft.ops.control import AsyncStart, OptimizationBarrier, While
from weft.ops.scatter import Scatter
from weft.ops.shape import BitcastConvert, Reshape
from weft.ops.sharding import Annotation
from weft.ops.slicing import DynamicUpdateSlice

RENAMED = (Reshape, BitcastConvert, OptimizationBarrier, Annotation)
UPDATES = (DynamicUpdateSlice, Scatter)  # result n is operand n with parts of it overwritten


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


class Donated(NamedTuple):
    """What an argument's attributes say of its buffer."""

    free: bool  # nobody outside reads it again
    output: int | None  # the result that must take its place


def donation(function: Function, index: int) -> Donated:
    """What the attributes of an argument say, in JAX's words."""
    attrs = dict(function.arg_attrs[index]) if function.arg_attrs else {}
    if target := attrs.get(ALIASED):
        return Donated(True, int(target.partition(":")[0]))
    return Donated(attrs.get(DONOR) in ("true", "unit"), None)


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


def same_room(given: Type, made: Type) -> bool:
    """Whether elements of one type can be replaced by those of another, one by one."""
    return (
        isinstance(given, TensorType)
        and isinstance(made, TensorType)
        and given.shape == made.shape
        and stored(given) == stored(made)
    )


def is_in_place(op: type[Op]) -> bool:
    """Whether an op can write its results over operands of the same size."""
    return op.elementwise or issubclass(op, UPDATES)


def heirs(function: Function) -> dict[Value, int]:
    """Which values may overwrite an argument that a result must take the place of.

    Those are the values from which the result is made step by step in one buffer.
    """
    body = function.body
    found: dict[Value, int] = {}
    for index in range(len(body.args)):
        output = donation(function, index).output
        if output is not None and output < len(body.results):
            found.setdefault(body.results[output], index)
    if not found:
        return found
    for node in reversed(body.nodes):
        for n, value in enumerate(node.results):
            index = found.get(value, -1)
            if index < 0:
                continue
            kind = type(node.op)
            if issubclass(kind, (*RENAMED, *UPDATES, While)):
                found.setdefault(node.operands[n], index)
            elif kind.elementwise:
                for operand in node.operands:
                    if same_room(operand.type, value.type):
                        found.setdefault(operand, index)
    return found
