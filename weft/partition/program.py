"""The state of a whole program during partitioning."""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Mapping
from dataclasses import field, replace
from functools import cached_property
from typing import Protocol, TypeVar

from weft.cost.prices import BYTES, CollectivePrices
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
from weft.records import dataclass

T = TypeVar("T", bound=Hashable)


class Interner:
    """Interns equal objects: an id each, in the order they are first seen; lookups by identity."""

    def __init__(self) -> None:
        self._known: dict[Hashable, tuple[int, Hashable]] = {}
        self._seen: dict[int, tuple[int, Hashable]] = {}  # by identity; things are kept alive
        self._alive: list[Hashable] = []

    def id_of(self, thing: Hashable) -> int:
        """The id of an object, the same for all that are equal."""
        return (self._seen.get(id(thing)) or self._first(thing))[0]

    def canonical(self, thing: T) -> T:
        """The first seen of all objects that are equal to this one."""
        return (self._seen.get(id(thing)) or self._first(thing))[1]  # type: ignore[return-value]

    def _first(self, thing: Hashable) -> tuple[int, Hashable]:
        found = self._known.setdefault(thing, (len(self._known), thing))
        self._seen[id(thing)] = found
        self._alive.append(thing)
        return found


class RuleFinder(Protocol):
    """The user's rules of custom calls and composites."""

    def find(self, node: Node) -> Rule | None:
        """The user's rule of a node, or None."""
        ...


@dataclass(slots=True)
class GlobalValue:
    """A global value: its defining builder, its propagated split, and all its versions."""

    builder: Builder
    asked: DimAxes | None
    versions: list[Piece]
    state: int = 0  # interned versions and requested split
    seen: int = 0  # the number of versions at that time
    again: Node | None = None  # a node that can be recomputed in any split


@dataclass(frozen=True, slots=True)
class NodeStrategy:
    """The plan of an op on operands of some splits: computed once for all equal nodes."""

    rule: Rule
    chosen: FactorAxes
    operands: tuple[DimAxes, ...]
    results: tuple[DimAxes, ...]
    partial: Partial | None
    masks: tuple[tuple[int, tuple[int, ...]], ...]  # operand dims whose padding must be masked
    wanted: tuple[DimAxes | None, ...]  # of the results
    plain: tuple[Op, Types] | None = None  # the local op and its types, if nothing else is needed
    states: tuple[int, ...] = ()  # splits of the results, if it is plain
    moved: float = 0.0  # bytes sent because the op's tensors have conflicting splits
    is_remade: bool = False  # whether the result can be recomputed in any split


@dataclass(frozen=True, slots=True)
class LocalFunction:
    """A called function on local types, and the splits of its results."""

    function: Function
    results: tuple[Piece, ...]


@dataclass(frozen=True)
class StrategyMemory:
    """Strategies of nodes that several policies for one module share."""

    agreed: dict[tuple[object, ...], NodeStrategy] = field(default_factory=dict)  # of any policy
    weighed: dict[tuple[object, ...], NodeStrategy] = field(default_factory=dict)  # by weights, too
    numbers: Interner = field(default_factory=Interner)
    states: dict[tuple[int, ...], int] = field(default_factory=dict)


@dataclass
class ModuleState:
    """The state of the whole module during partitioning."""

    module: Module
    mesh: Mesh
    mesh_name: str
    rules: RuleFinder | None = None  # the user's rules
    planned: float = 0.0  # bytes sent by all reshards, loops counted once
    moved: float = 0.0  # bytes sent because an op's tensors have conflicting splits
    policy: Policy = field(default_factory=Policy)  # the weights of costs when axes are chosen
    prices: CollectivePrices = BYTES  # of reshards
    notes: list[Note] | None = None  # notes on gathers, if requested
    places: dict[Value, list[Piece]] | None = None  # the piece of every value, if requested
    memory: StrategyMemory = field(default_factory=StrategyMemory)
    added: dict[str, Function] = field(default_factory=dict)  # functions created along the way
    called: dict[tuple[object, ...], LocalFunction] = field(default_factory=dict)
    shardings: dict[int, DimAxes] = field(default_factory=dict)  # by the identity of a sharding
    stands_for: dict[Value, Value] = field(default_factory=dict)  # replacements of values

    @property
    def numbers(self) -> Interner:
        """Interned splits and types."""
        return self.memory.numbers

    @property
    def states(self) -> dict[tuple[int, ...], int]:
        """Interned states of values."""
        return self.memory.states

    @cached_property
    def weights(self) -> tuple[object, ...]:
        """The weights of the policy, as a part of the key of a strategy."""
        policy = self.policy
        return (policy.result_weight, policy.avoids_full_gathers, policy.by_time)

    def sharding(self, value: Value) -> Sharding | None:
        """The propagated sharding of a value."""
        if self.stands_for:
            value = self.stands_for.get(value, value)
        return self.table.get(value)

    @cached_property
    def table(self) -> Mapping[Value, Sharding]:
        """The propagated sharding of each value."""
        found = self.module.tables.get(SHARDINGS, {})
        return {value: s for value, s in found.items() if isinstance(s, Sharding)}

    @property
    def splits(self) -> dict[Value, DimAxes]:
        """The propagated splits of tensors."""
        return {
            value: split_of(sharding, value.type.rank)
            for value, sharding in self.table.items()
            if isinstance(value.type, TensorType)
        }

    def add_function(self, function: Function) -> str:
        """Add a function created along the way, under a fresh name."""
        taken = {**self.module.functions, **self.added}
        numbers = (f"{function.name}_{n}" for n in itertools.count())
        name = next(name for name in numbers if name not in taken)
        self.added[name] = replace(function, name=name, visibility="private")
        return name

    def keep(self, function: Function) -> Function:
        """Add a called function, under its own name if that is free."""
        if function.name in self.roots or function.name in self.added:
            return self.added[self.add_function(function)]
        self.added[function.name] = function
        return function

    @cached_property
    def propagated(self) -> frozenset[Value]:
        """The values of propagated functions, which are replicated without a sharding."""
        table = self.table
        members: set[Value] = set()
        for function in self.module.functions.values():
            values = [v for node in walk(function.body) for v in node.results]
            if any(v in table for v in values) or any(v in table for v in function.body.args):
                members.update(values)
        return frozenset(members)

    @cached_property
    def roots(self) -> frozenset[str]:
        """The entry functions: public ones, and those without callers."""
        called = {n.op.callee for n in self.module.nodes() if isinstance(n.op, Call)}
        return frozenset(
            name
            for name, f in self.module.functions.items()
            if f.visibility != "private" or name not in called
        )

    def result_shardings(self, function: Function) -> list[Sharding | None]:
        """The shardings of a function's results."""
        attrs = function.res_attrs or ((),) * len(function.body.results)
        return [_sharding_attr(a) for a in attrs]


def _sharding_attr(attrs: Attrs) -> Sharding | None:
    text = dict(attrs).get(SHARDING)
    return None if text is None else parse_sharding(text)
