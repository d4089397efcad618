"""A captured program: a module and the pytrees of its arguments and results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from weft.executable.signature import Parameter
from weft.ir.module import Module
from weft.mesh import Mesh
from weft.ops.custom_calls.callbacks import HostFunction
from weft.records import dataclass


@dataclass(frozen=True, slots=True)
class Leaf:
    """One array among a program's arguments or results: its name, type and sharding."""

    name: str
    shape: tuple[int, ...]
    dtype: Any  # numpy's, or one of JAX's extended dtypes (random keys)
    weak: bool = False  # JAX's weak type, of a Python scalar
    donated: bool = False
    sharding: object = None  # the sharding that the argument itself has, if any
    updated_by: int | None = None  # the result that takes the memory of a donated argument
    part: tuple[int, int, int] | None = None  # of the caller's value: a dim, start and end

    @property
    def holds_keys(self) -> bool:
        """Whether it holds JAX's typed random keys, which are integers underneath."""
        return not isinstance(self.dtype, np.dtype)

    def part_of(self, value: Any) -> Any:
        """The caller's value, or the part of it that this is: a view of a PyTorch tensor."""
        if self.part is None:
            return value
        dim, start, end = self.part
        return value.detach().narrow(dim, start, end - start)


@dataclass(frozen=True, slots=True)
class Captured:
    """A function's program with the pytrees of its arguments and results."""

    module: Module
    mesh: Mesh | None
    in_tree: Any  # of the arguments; None for a flat list of arrays
    out_tree: Any
    arguments: tuple[Leaf, ...]
    results: tuple[Leaf, ...]
    is_one: bool = False  # whether it returns a single array, not a tree
    host: tuple[HostFunction, ...] = ()  # the Python callbacks of the program, kept alive
    kept: tuple[object, ...] = ()  # other objects that must live until it is compiled
    parameters: tuple[Parameter, ...] = ()  # of a function's positional arguments
    updated: tuple[
        int, ...
    ] = ()  # arguments updated in place: the first results are their new values
    counted: tuple[tuple[int, float], ...] = ()  # updates that add a number: result and number
    is_seeded: bool = False  # whether the last argument is a seed, drawn for every run
    narrows: bool = False  # whether 64-bit arrays are narrowed to 32 bits, JAX's default
    places: tuple[int, ...] = ()  # the caller's value of each argument, if some are parts of one

    def spread(self, values: Sequence[Any]) -> Sequence[Any]:
        """The value of each argument: a caller's value of several parts is several."""
        if not self.places or len(values) <= max(self.places):
            return values
        return tuple([values[place] for place in self.places])

    def targets(self, values: Sequence[Any]) -> Sequence[Any]:
        """The value of each argument, or the part of it: the memory of in-place updates."""
        if not self.places:
            return values
        pairs = zip(self.spread(values), self.arguments, strict=False)
        return [leaf.part_of(value) for value, leaf in pairs]

    def packed(self, results: list[Any]) -> Any:
        """The results in the function's result tree; a tuple for a module."""
        return tuple(results) if self.out_tree is None else self.out_tree.unflatten(results)
