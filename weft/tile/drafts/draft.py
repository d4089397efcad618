"""A kernel under construction: computed instances, and pending ones.

A draft is built from its outputs backwards. It requests values at indices (instances); one that its
own nodes compute is defined by requesting their operands, and those left undefined become loads.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

from weft.ir.module import Node, Value
from weft.kernels.kernel import Affine, Guard, Step
from weft.records import dataclass
from weft.tile.drafts.index import At, Bound, Expr, Split, always, factor, factors_of, limits

StepKey: TypeAlias = tuple[Value, At, tuple[Bound, ...]]


@dataclass(frozen=True, slots=True)
class Terms:
    """The final numbering: affine forms of expressions once the factors are fixed."""

    affine: Callable[[Expr], Affine]
    operand: Callable[[Value], int]
    place: Callable[[Value, At], Affine]
    factors: Callable[[Sequence[int]], tuple[int, ...]]

    def guards(self, bounds: Sequence[Bound]) -> tuple[Guard, ...]:
        """Bounds as guards."""
        return tuple([Guard(self.affine(e), low, high) for e, low, high in bounds])


@dataclass(frozen=True, slots=True)
class Definition:
    """The definition of an instance: its arguments, and its step.

    Without a step it is an alias of its only argument.
    """

    args: tuple[int, ...]
    make: Callable[[tuple[int, ...], Terms], Step] | None


class Draft:
    """A group of nodes that will become one kernel."""

    def __init__(self, position: int) -> None:
        self.position = position  # position of its first output in the program
        self.sizes: list[int] = []  # sizes of the factors
        self.devices: set[int] = set()  # device factors
        self.parts: dict[int, tuple[int, int, int]] = {}  # split factors: major, minor, minor size
        self.made: dict[StepKey, int] = {}  # numbered instances
        self.keys: list[StepKey | None] = []  # of each instance; None for one without a value
        self.definitions: list[Definition | None] = []
        self.pending: dict[Value, list[int]] = {}  # undefined instances
        # Dynamic indices: pseudo-factors, each with the instance of its value, and its limit.
        self.later: dict[int, tuple[int, int]] = {}
        self.outputs: list[tuple[Value, int]] = []
        self.nodes: dict[Node, None] = {}
        self.root: tuple[int, ...] = ()  # factors of the first output, major first
        self.rows: tuple[int, ...] = ()  # reduced factors
        self.contract: int | None = None  # the instance of the contraction
        self.upstream: set[int] = set()  # transitive inputs of the contraction
        self.summed: tuple[int, int] | None = None  # a sum over devices, and its operand

    # Factors

    def size(self, number: int) -> int:
        """The size of a factor."""
        return self.sizes[number]

    def new(self, size: int, *, device: bool = False) -> int:
        """A new factor."""
        self.sizes.append(size)
        if device:
            self.devices.add(len(self.sizes) - 1)
        return len(self.sizes) - 1

    def along(self, shape: Sequence[int], lead: int) -> At:
        """A new factor for each dim of a stack with more than one element."""
        return tuple(
            [
                (0, ()) if size == 1 else factor(self.new(size, device=dim < lead))
                for dim, size in enumerate(shape)
            ]
        )

    def known_later(self, index: int, limit: int) -> Expr:
        """A dynamic index: an instance's run-time value, clamped to 0..limit."""
        number = self.new(limit + 1)
        self.later[number] = (index, limit)
        return factor(number)

    def same_factors(self) -> Draft:
        """A draft of the same factors without instances, to try splits on."""
        made = Draft(self.position)
        made.sizes, made.devices, made.parts = [*self.sizes], {*self.devices}, {**self.parts}
        return made

    def split(self, wish: Split) -> None:
        """Split a factor, everywhere."""
        number, inner = wish.factor, wish.inner
        device = number in self.devices
        major = self.new(self.sizes[number] // inner, device=device)
        minor = self.new(inner, device=device)
        self.parts[number] = (major, minor, inner)
        # Instances keep their numbers: only their indices are spelled in the new factors.
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
        """An expression in unsplit factors."""
        if not self.parts or all(number not in self.parts for number, _ in expr[1]):
            return expr
        terms: dict[int, int] = {}
        todo = list(expr[1])
        while todo:
            number, coefficient = todo.pop()
            # Splits nest: a part may have been split again.
            if number in self.parts:
                major, minor, inner = self.parts[number]
                todo += [(major, coefficient * inner), (minor, coefficient)]
            else:
                terms[number] = terms.get(number, 0) + coefficient
        return (expr[0], tuple(sorted(terms.items())))

    def spelled(self, factors: tuple[int, ...]) -> tuple[int, ...]:
        """Factors with split ones replaced by their parts, major first."""
        leaves: list[int] = []
        for number in factors:
            if number in self.parts:
                major, minor, _ = self.parts[number]
                leaves += self.spelled((major, minor))
            else:
                leaves.append(number)
        return tuple(leaves)

    # Instances

    def instance(self, value: Value, at: At, bounds: tuple[Bound, ...] = ()) -> int:
        """The number of a value at an index; pending if it is new."""
        key = (value, at, bounds)
        number = self.made.get(key)
        if number is None:
            number = self.made[key] = len(self.keys)
            self.keys.append(key)
            self.definitions.append(None)
            self.pending.setdefault(value, []).append(number)
        return number

    def anonymous(self, definition: Definition) -> int:
        """An instance without a value of the program."""
        self.keys.append(None)
        self.definitions.append(definition)
        return len(self.keys) - 1

    def define(self, number: int, definition: Definition) -> None:
        """Define an instance."""
        self.definitions[number] = definition
        # What a contraction's operand is computed from is computed while it packs, too.
        if number in self.upstream:
            self.upstream.update(definition.args)
        key = self.keys[number]
        if key is not None:
            waiting = self.pending[key[0]]
            waiting.remove(number)
            if not waiting:
                del self.pending[key[0]]

    def at(self, number: int) -> At:
        """The index of an instance."""
        key = self.keys[number]
        assert key is not None, "an instance of a value"
        return key[1]

    def bounds(self, number: int) -> tuple[Bound, ...]:
        """The bounds outside of which an instance is not needed: no loads there."""
        key = self.keys[number]
        assert key is not None, "an instance of a value"
        return key[2]

    def needed(self, bounds: Sequence[Bound]) -> tuple[Bound, ...]:
        """The bounds that are not trivially true."""
        return tuple([b for b in bounds if not always(b, self.size)])

    def inside(self, at: Sequence[Expr], shape: Sequence[int]) -> tuple[Bound, ...]:
        """The bounds that keep indices inside a shape, where they may leave it."""
        bounds = []
        for expr, size in zip(at, shape, strict=True):
            low, high = limits(expr, self.size)
            if low < 0 or high >= size:
                bounds.append((expr, 0, size))
        return tuple(bounds)

    # Cost

    def points(self, at: Sequence[Expr]) -> int:
        """The number of points of the factors that indices depend on."""
        return math.prod(self.sizes[n] for n in factors_of(at) - self.later.keys())

    @property
    def volume(self) -> int:
        """The number of points of the first output."""
        return math.prod(self.sizes[n] for n in self.root)
