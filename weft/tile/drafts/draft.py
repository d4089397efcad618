"""A kernel in the making: what it computes at which points, and what it still waits for.

A draft is made from its outputs backwards. It wants values at places; a value that its own nodes
make is defined by wanting their operands, and what nobody defines is read from memory in the end.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from weft.ir.module import Node, Value
from weft.ir.types import TensorType
from weft.kernels.kernel import Affine, Guard, Step
from weft.tile.drafts.index import At, Bound, Expr, Split, always, factor, factors_of, limits

StepKey: TypeAlias = tuple[Value, At, tuple[Bound, ...]]


@dataclass(frozen=True, slots=True)
class Terms:
    """What a step is written in once the factors are known: affine forms of expressions."""

    affine: Callable[[Expr], Affine]
    operand: Callable[[Value], int]
    place: Callable[[Value, At], Affine]
    factors: Callable[[Sequence[int]], tuple[int, ...]]

    def guards(self, bounds: Sequence[Bound]) -> tuple[Guard, ...]:
        """Bounds as guards."""
        return tuple([Guard(self.affine(e), low, high) for e, low, high in bounds])


@dataclass(frozen=True, slots=True)
class Definition:
    """How an instance is computed: from which others, and by which step.

    Without a step it is the same as its only argument.
    """

    args: tuple[int, ...]
    make: Callable[[tuple[int, ...], Terms], Step] | None


class Draft:
    """A group of nodes that is to become one kernel."""

    def __init__(self, position: int) -> None:
        self.position = position  # of its first output in the program
        self.sizes: list[int] = []  # of the factors
        self.devices: set[int] = set()  # factors that count devices
        self.parts: dict[int, tuple[int, int, int]] = {}  # a split factor: major, minor, its size
        self.made: dict[StepKey, int] = {}  # instances, numbered
        self.keys: list[StepKey | None] = []  # of each instance; None for those without a value
        self.definitions: list[Definition | None] = []
        self.pending: dict[Value, list[int]] = {}  # instances that nobody defines yet
        # Factors that are no loops: an index that is known later, the instance that it is, its end.
        self.later: dict[int, tuple[int, int]] = {}
        self.outputs: list[tuple[Value, int]] = []
        self.nodes: dict[Node, None] = {}
        self.root: tuple[int, ...] = ()  # the factors of the first output, major first
        self.rows: tuple[int, ...] = ()  # the factors that are reduced along
        self.contract: int | None = None  # the instance that is a product
        self.upstream: set[int] = set()  # instances that the product's operands are made of
        self.summed: tuple[int, int] | None = None  # a sum over devices, and what is summed

    # Factors

    def size(self, number: int) -> int:
        """The size of a factor."""
        return self.sizes[number]

    def new(self, size: int, *, device: bool = False) -> int:
        """A factor of that size."""
        self.sizes.append(size)
        if device:
            self.devices.add(len(self.sizes) - 1)
        return len(self.sizes) - 1

    def along(self, shape: Sequence[int], lead: int) -> At:
        """A new factor for each dim of a stack that has more than one element."""
        return tuple(
            [
                (0, ()) if size == 1 else factor(self.new(size, device=dim < lead))
                for dim, size in enumerate(shape)
            ]
        )

    def known_later(self, index: int, limit: int) -> Expr:
        """What an instance will be at run time, kept in 0..limit, as an index."""
        number = self.new(limit + 1)
        self.later[number] = (index, limit)
        return factor(number)

    def split(self, wish: Split) -> None:
        """Take a factor apart, everywhere."""
        number, inner = wish.factor, wish.inner
        device = number in self.devices
        major = self.new(self.sizes[number] // inner, device=device)
        minor = self.new(inner, device=device)
        self.parts[number] = (major, minor, inner)
        self.keys = [None if key is None else self._renewed(key) for key in self.keys]
        self.made = {key: n for n, key in enumerate(self.keys) if key is not None}
        self.root = self.spelled(self.root)
        self.rows = self.spelled(self.rows)

    def _renewed(self, key: StepKey) -> StepKey:
        value, at, bounds = key
        return (
            value,
            tuple([self.fresh(e) for e in at]),
            tuple([(self.fresh(e), low, high) for e, low, high in bounds]),
        )

    def fresh(self, expr: Expr) -> Expr:
        """An expression in factors that are not split."""
        if not self.parts or all(number not in self.parts for number, _ in expr[1]):
            return expr
        terms: dict[int, int] = {}
        todo = list(expr[1])
        while todo:
            number, coefficient = todo.pop()
            if number in self.parts:
                major, minor, inner = self.parts[number]
                todo += [(major, coefficient * inner), (minor, coefficient)]
            else:
                terms[number] = terms.get(number, 0) + coefficient
        return (expr[0], tuple(sorted(terms.items())))

    def spelled(self, factors: tuple[int, ...]) -> tuple[int, ...]:
        """Factors with those that are split replaced by their parts, major first."""
        found: list[int] = []
        for number in factors:
            if number in self.parts:
                major, minor, _ = self.parts[number]
                found += self.spelled((major, minor))
            else:
                found.append(number)
        return tuple(found)

    # Instances

    def instance(self, value: Value, at: At, bounds: tuple[Bound, ...] = ()) -> int:
        """The number of a value at a place; it is pending if it is new."""
        key = (value, at, bounds)
        found = self.made.get(key)
        if found is None:
            found = self.made[key] = len(self.keys)
            self.keys.append(key)
            self.definitions.append(None)
            self.pending.setdefault(value, []).append(found)
        return found

    def anonymous(self, definition: Definition) -> int:
        """An instance of nothing that the program names."""
        self.keys.append(None)
        self.definitions.append(definition)
        return len(self.keys) - 1

    def define(self, number: int, definition: Definition) -> None:
        """Say how an instance is computed."""
        self.definitions[number] = definition
        if number in self.upstream:
            self.upstream.update(definition.args)
        key = self.keys[number]
        if key is not None:
            waiting = self.pending[key[0]]
            waiting.remove(number)
            if not waiting:
                del self.pending[key[0]]

    def at(self, number: int) -> At:
        """Where an instance is wanted."""
        key = self.keys[number]
        assert key is not None, "an instance of a value"
        return key[1]

    def bounds(self, number: int) -> tuple[Bound, ...]:
        """Where an instance matters: elsewhere nothing is read for it."""
        key = self.keys[number]
        assert key is not None, "an instance of a value"
        return key[2]

    def needed(self, bounds: Sequence[Bound]) -> tuple[Bound, ...]:
        """The bounds that do not hold anyway."""
        return tuple([b for b in bounds if not always(b, self.size)])

    def inside(self, at: Sequence[Expr], shape: Sequence[int]) -> tuple[Bound, ...]:
        """The bounds that keep indices inside a shape, where they may leave it."""
        found = []
        for expr, size in zip(at, shape, strict=True):
            low, high = limits(expr, self.size)
            if low < 0 or high >= size:
                found.append((expr, 0, size))
        return tuple(found)

    # What it costs

    def points(self, at: Sequence[Expr]) -> int:
        """How many points there are of the factors that indices depend on."""
        return math.prod(self.sizes[n] for n in factors_of(at) - self.later.keys())

    @property
    def volume(self) -> int:
        """How many points the first output has."""
        return math.prod(self.sizes[n] for n in self.root)


def tensor(value: Value) -> TensorType:
    """The type of a value that is a tensor."""
    assert isinstance(value.type, TensorType), f"{value!r} is no tensor"
    return value.type
