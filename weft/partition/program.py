"""What is known of a whole program while its functions are partitioned."""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Protocol, TypeVar

from weft.ir.attrs import Attrs
from weft.ir.module import Function, Module, Node, Value, walk
from weft.ir.names import SHARDING
from weft.ir.op import Op
from weft.ir.rule import Rule
from weft.ir.types import TensorType, Types
from weft.ir.write import SHARDINGS
from weft.mesh import Mesh, Sharding, parse_sharding
from weft.mesh.algebra import DimAxes
from weft.ops.control import Call
from weft.partition.builder import Builder
from weft.partition.notes import Note
from weft.partition.piece import Partial, Piece, split_of
from weft.partition.strategy.factors import FactorAxes
from weft.partition.strategy.policies import Policy

T = TypeVar("T", bound=Hashable)


class Numbers:
    """Numbers things in the order they are first seen; what was seen is found by its identity."""

    def __init__(self) -> None:
        self._known: dict[Hashable, tuple[int, Hashable]] = {}
        self._seen: dict[int, tuple[int, Hashable]] = {}  # by identity; things are kept alive
        self._alive: list[Hashable] = []

    def number(self, thing: Hashable) -> int:
        """The number of a thing, the same for all that are equal."""
        return (self._seen.get(id(thing)) or self._first(thing))[0]

    def one(self, thing: T) -> T:
        """Of all that are equal to a thing the one that was seen first."""
        return (self._seen.get(id(thing)) or self._first(thing))[1]  # type: ignore[return-value]

    def _first(self, thing: Hashable) -> tuple[int, Hashable]:
        found = self._known.setdefault(thing, (len(self._known), thing))
        self._seen[id(thing)] = found
        self._alive.append(thing)
        return found


class RuleFinder(Protocol):
    """The rules that users give to custom calls and composites."""

    def find(self, node: Node) -> Rule | None:
        """The rule of a node, if a user gives it one."""
        ...


@dataclass(slots=True)
class GlobalValue:
    """A global value: where it is built, how propagation splits it, and every place it is in."""

    builder: Builder
    asked: DimAxes | None
    versions: list[Piece]
    state: int = 0  # the same for all that are split, unreduced and asked for alike
    seen: int = 0  # how many versions there were when that was found out
    again: Node | None = None  # that can be computed anew for any piece


@dataclass(frozen=True, slots=True)
class Recipe:
    """How an op on operands of some splits is computed: worked out once, used for all alike."""

    rule: Rule
    chosen: FactorAxes
    operands: tuple[DimAxes, ...]
    results: tuple[DimAxes, ...]
    partial: Partial | None
    masks: tuple[tuple[int, tuple[int, ...]], ...]  # operands with dims whose padding would count
    wanted: tuple[DimAxes | None, ...]  # of the results
    plain: tuple[Op, Types] | None = None  # the local op and its types, if that is all there is
    states: tuple[int, ...] = ()  # of the results, where it is plain
    moved: float = 0.0  # bytes sent because tensors of the op are split differently
    is_remade: bool = False  # whether any piece of the result can be computed anew


@dataclass(frozen=True, slots=True)
class Called:
    """A function that is called, on local types, and how its results are split."""

    function: Function
    results: tuple[Piece, ...]


@dataclass
class ModuleState:
    """What is known of the whole module while its functions are partitioned."""

    module: Module
    mesh: Mesh
    mesh_name: str
    rules: RuleFinder | None = None  # rules that users give
    planned: float = 0.0  # bytes of all reshards, loops counted once
    moved: float = 0.0  # bytes sent because tensors of an op are split differently
    policy: Policy = field(default_factory=Policy)  # what counts when factors are split
    notes: list[Note] | None = None  # what had to be gathered, if anyone asks
    places: dict[Value, list[Piece]] | None = None  # where every value is, if anyone asks
    recipes: dict[tuple[object, ...], Recipe] = field(default_factory=dict)
    added: dict[str, Function] = field(default_factory=dict)  # functions made on the way
    called: dict[tuple[object, ...], Called] = field(default_factory=dict)
    numbers: Numbers = field(default_factory=Numbers)
    states: dict[tuple[int, ...], int] = field(default_factory=dict)
    shardings: dict[int, DimAxes] = field(default_factory=dict)  # by the identity of a sharding
    stands_for: dict[Value, Value] = field(default_factory=dict)  # a value in the place of another

    def sharding(self, value: Value) -> Sharding | None:
        """The sharding that propagation gave a value."""
        if self.stands_for:
            value = self.stands_for.get(value, value)
        return self.table.get(value)

    @cached_property
    def table(self) -> Mapping[Value, Sharding]:
        """What propagation gave each value."""
        found = self.module.tables.get(SHARDINGS, {})
        return {value: s for value, s in found.items() if isinstance(s, Sharding)}

    @property
    def splits(self) -> dict[Value, DimAxes]:
        """The splits that propagation gave tensors."""
        return {
            value: split_of(sharding, value.type.rank)
            for value, sharding in self.table.items()
            if isinstance(value.type, TensorType)
        }

    def add_function(self, function: Function) -> str:
        """Keep a function that was made on the way, under a name of its own."""
        taken = {**self.module.functions, **self.added}
        numbers = (f"{function.name}_{n}" for n in itertools.count())
        name = next(name for name in numbers if name not in taken)
        self.added[name] = replace(function, name=name, visibility="private")
        return name

    def keep(self, function: Function) -> Function:
        """Keep a called function, under its own name if that is free."""
        if function.name in self.roots or function.name in self.added:
            return self.added[self.add_function(function)]
        self.added[function.name] = function
        return function

    @cached_property
    def propagated(self) -> frozenset[Value]:
        """The values of functions that propagation went through: whole, where it says nothing."""
        table = self.table
        found: set[Value] = set()
        for function in self.module.functions.values():
            values = [v for node in walk(function.body) for v in node.results]
            if any(v in table for v in values) or any(v in table for v in function.body.args):
                found.update(values)
        return frozenset(found)

    @cached_property
    def roots(self) -> frozenset[str]:
        """The functions that others may call by name: public ones, and those nobody calls here."""
        called = {n.op.callee for n in self.module.nodes() if isinstance(n.op, Call)}
        return frozenset(
            name
            for name, f in self.module.functions.items()
            if f.visibility != "private" or name not in called
        )

    def result_shardings(self, function: Function) -> list[Sharding | None]:
        """The shardings of a function's results."""
        attrs = function.res_attrs or ((),) * len(function.body.results)
        return [_given(a) for a in attrs]


def _given(attrs: Attrs) -> Sharding | None:
    text = dict(attrs).get(SHARDING)
    return None if text is None else parse_sharding(text)
