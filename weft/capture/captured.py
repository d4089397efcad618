"""What capture makes of a user's program: a module, and how its values are packed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from weft.executable.signature import Parameter
from weft.ir.module import Module
from weft.mesh import Mesh
from weft.ops.custom_calls.callbacks import HostFunction


@dataclass(frozen=True, slots=True)
class Leaf:
    """One array among a program's arguments or results: its name and what is known of it."""

    name: str
    shape: tuple[int, ...]
    dtype: Any  # numpy's, or one of JAX's own, whose arrays hold keys of random numbers
    weak: bool = False  # a Python scalar's type, which gives way to others
    donated: bool = False
    sharding: object = None  # how the value that was given is split, where it says so

    @property
    def holds_keys(self) -> bool:
        """Whether it holds JAX's typed keys, which are integers underneath."""
        return not isinstance(self.dtype, np.dtype)


@dataclass(frozen=True, slots=True)
class Captured:
    """A function's program, and how its arguments and results are packed into pytrees."""

    module: Module
    mesh: Mesh | None
    in_tree: Any  # of the arguments; None where they are arrays, one after another
    out_tree: Any
    arguments: tuple[Leaf, ...]
    results: tuple[Leaf, ...]
    is_one: bool = False  # whether it gives one array, and no tree of them
    host: tuple[HostFunction, ...] = ()  # the Python functions that the program calls, kept alive
    kept: tuple[object, ...] = ()  # what else must live until it is compiled
    parameters: tuple[Parameter, ...] = ()  # of a function, as it was called
    updated: tuple[int, ...] = ()  # the arguments that the first results are new values of
    narrows: bool = False  # whether 64-bit arrays are taken for 32-bit ones, as JAX does by default

    def packed(self, results: list[Any]) -> Any:
        """The results in the form that the function returns; a tuple of them for a module."""
        return tuple(results) if self.out_tree is None else self.out_tree.unflatten(results)
