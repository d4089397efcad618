"""Examples that need more than arrays: ops inside programs, and ops in which devices meet."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tests.ops.example import Example
from weft.capture import parse
from weft.evaluate import evaluate
from weft.ir.module import Function, Module, Node, Region, Value, apply
from weft.ir.op import Op
from weft.ir.types import Array, TensorType, Types, type_of


@dataclass(frozen=True)
class Program(Example):
    """An op that needs a program around it, as text; the arrays are the arguments of its main."""

    text: str = ""

    @classmethod
    def holding(cls, op: type[Op], text: str, *arrays: Array) -> Program:
        """The first op of that class in a program."""
        node = next(n for n in parse(text).nodes() if isinstance(n.op, op))
        return cls(node.op, arrays, node.regions, text)

    @property
    def types(self) -> Types:
        """The types of the op's operands, which are not those of main."""
        return self.node().operand_types

    def node(self) -> Node:
        """The op where it stands in the program."""
        return next(n for n in self.module().nodes() if n.op is self.op)

    def module(self) -> Module:
        """The program."""
        return parse(self.text)


@dataclass(frozen=True)
class OnDevices(Example):
    """An op in which devices meet: every array has a leading dim, one entry a device."""

    devices: int = 1

    @property
    def types(self) -> Types:
        """The types on each device."""
        return tuple(type_of(a[0]) for a in self.arrays)


def run(example: Example) -> tuple[Any, ...]:
    """What an example gives; stacked if it runs on devices."""
    return evaluate(example.module(), *example.arrays, devices=getattr(example, "devices", None))


def region(types: Types, *steps: tuple[Op, tuple[int, ...]], results: tuple[int, ...]) -> Region:
    """A region from its steps; arguments and then results of the steps are numbered from 0."""
    args = tuple(Value(t, None, n) for n, t in enumerate(types))
    values = list(args)
    nodes = []
    for op, operands in steps:
        node = apply(op, *(values[n] for n in operands))
        nodes.append(node)
        values.extend(node.results)
    return Region(args, nodes, tuple(values[n] for n in results))


def module_of(op: Op, types: Types, regions: tuple[Region, ...] = ()) -> Module:
    """A module whose main applies an op to arguments of these types."""
    args = tuple(Value(t, None, n) for n, t in enumerate(types))
    node = apply(op, *args, regions=regions)
    return Module({"main": Function("main", Region(args, [node], node.results))})


def scalar(dtype: Any) -> TensorType:
    """The type of a tensor without dims."""
    return TensorType((), dtype)
