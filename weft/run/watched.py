"""A run whose kernels are launched one by one: what each was given, and what it gave."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from weft.array.stacked import Stacked
from weft.ir.types import Array
from weft.kernels.group import Group
from weft.kernels.kernel import Operand
from weft.kernels.placed import Placed
from weft.run.local import LocalProgram
from weft.run.target import Commands, Target


@dataclass(frozen=True, slots=True)
class Launched:
    """One launch of a kernel: copies of its operands, with leading dims for devices."""

    group: Group
    inputs: tuple[Array, ...]
    outputs: tuple[Array, ...]


See: TypeAlias = Callable[[Launched], None]


def run_watched(program: LocalProgram, stacks: Sequence[Stacked | None], see: See) -> None:
    """Run a program's kernels on the arguments of all devices, and show every launch."""
    assert program.target is not None, "without a target there are no kernels"
    target = _Target(program.target, see)
    watched = LocalProgram(program.module, program.function.name, target=target)
    assert watched.launches is not None, "a program with a target has launches"
    for launch in watched.launches.launches:
        for item, loaded in zip(launch.items, launch.loaded, strict=True):
            loaded.group = item.group
    watched(*stacks)


@dataclass(slots=True, eq=False)
class _Loaded:
    """A kernel in memory for one group; groups that are alike have one each."""

    own: Any
    group: Group | None = None


class _Target:
    """A target whose kernels are shown when they have run."""

    def __init__(self, target: Target, see: See) -> None:
        self.target, self.see = target, see

    def group(
        self, placed: Sequence[Placed], sizes: tuple[int, ...], results: Sequence[Any]
    ) -> Sequence[Group]:
        return self.target.group(placed, sizes, results)

    def load(self, kernels: Sequence[Any]) -> Sequence[_Loaded]:
        return [_Loaded(own) for own in self.target.load(kernels)]

    def commands(self) -> _Commands:
        return _Commands(self.target, self.see)


class _Commands:
    """Commands of one kernel each, which share a table of operands."""

    def __init__(self, target: Target, see: See) -> None:
        self.target, self.see = target, see
        self.listed: list[tuple[Commands, _Loaded, slice]] = []
        self.operands: list[int] = []
        self.table: npt.NDArray[np.uint64] | None = None

    def kernel(self, loaded: _Loaded, operands: Sequence[int]) -> int:
        at = len(self.operands)
        self.operands += operands
        one = self.target.commands()
        one.kernel(loaded.own, operands)
        self.listed.append((one, loaded, slice(at, len(self.operands))))
        return at

    @property
    def pointers(self) -> npt.NDArray[np.uint64]:
        if self.table is None:
            self.table = np.array(self.operands, np.uint64)
        return self.table

    def run(self) -> None:
        table = self.pointers
        for one, loaded, part in self.listed:
            group, places = loaded.group, table[part]
            one.pointers[: part.stop - part.start] = places
            assert group is not None and group.kernel is not None, "noted before the run"
            operands = [*zip(group.kernel.operands, places, strict=True)]
            # Before the launch: a result may be written over an operand.
            inputs = tuple(_arrays(operands, output=False))
            one.run()
            self.see(Launched(group, inputs, tuple(_arrays(operands, output=True))))


def _arrays(operands: Sequence[tuple[Operand, Any]], *, output: bool) -> Iterator[Array]:
    for operand, place in operands:
        if operand.output is output:
            memory = (ctypes.c_char * operand.nbytes).from_address(int(place) or _NOWHERE)
            made = np.frombuffer(bytes(memory), operand.dtype.numpy)
            yield made.reshape(operand.shape)


_NOTHING = ctypes.create_string_buffer(1)
_NOWHERE = ctypes.addressof(_NOTHING)  # of an operand without elements
