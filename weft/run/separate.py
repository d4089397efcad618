"""A target whose kernels are launched one by one, so that each launch can be timed or watched."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from weft.kernels.group import Group
from weft.target import Commands, Runtime

Addresses: TypeAlias = npt.NDArray[np.uint64]


@dataclass(slots=True, eq=False)
class SeparateKernel:
    """A loaded kernel of one launch; alike ones share `own`, what the target has loaded."""

    own: Any
    group: Group | None = None  # noted by a reader that wants to know it


# What is called for each launch: the kernel, its operands' addresses, and what runs it.
Around: TypeAlias = Callable[[SeparateKernel, Addresses, Callable[[], None]], None]


class SeparateTarget:
    """A target that gives every launch to `around`."""

    def __init__(self, target: Runtime, around: Around) -> None:
        self.target, self.around = target, around

    def load(self, kernels: Sequence[Any]) -> Sequence[SeparateKernel]:
        return [SeparateKernel(own) for own in self.target.load(kernels)]

    def commands(self) -> _Commands:
        return _Commands(self.target, self.around)


class _Commands:
    """Commands of one kernel each, which share a table of operands."""

    def __init__(self, target: Runtime, around: Around) -> None:
        self.target, self.around = target, around
        self.listed: list[tuple[Commands, SeparateKernel, slice]] = []
        self.operands: list[int] = []
        self.table: Addresses | None = None

    def kernel(self, loaded: SeparateKernel, operands: Sequence[int]) -> int:
        at = len(self.operands)
        self.operands += operands
        one = self.target.commands()
        one.kernel(loaded.own, operands)
        self.listed.append((one, loaded, slice(at, len(self.operands))))
        return at

    @property
    def pointers(self) -> Addresses:
        if self.table is None:
            self.table = np.array(self.operands, np.uint64)
        return self.table

    def run(self) -> None:
        table = self.pointers
        for one, loaded, part in self.listed:
            one.pointers[: part.stop - part.start] = table[part]
            self.around(loaded, table[part], one.run)
