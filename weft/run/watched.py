"""Observed runs: kernels are launched one by one, with copies of their operands."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np

from weft.array.stacked import Stacked
from weft.errors import WeftError
from weft.ir.types import Array
from weft.kernels.group import Group
from weft.kernels.kernel import Operand
from weft.records import dataclass
from weft.run.bind import loaded_kernels
from weft.run.local import LocalProgram
from weft.run.separate import SeparateKernel, SeparateTarget
from weft.target import Addresses


@dataclass(frozen=True, slots=True)
class RecordedLaunch:
    """One launch of a kernel: copies of its operands, with leading dims for devices."""

    group: Group
    inputs: tuple[Array, ...]
    outputs: tuple[Array, ...]


See: TypeAlias = Callable[[RecordedLaunch], None]


def run_watched(program: LocalProgram, stacks: Sequence[Stacked | None], see: See) -> None:
    """Run a program and show every launch to `see`."""
    assert program.target is not None, "without a target there are no kernels"
    if not program.target.memory.is_host:
        raise WeftError(
            f"operands of {program.target.name} kernels cannot be watched: they lie in the memory "
            "of a device, where the host does not read",
            help="compare whole programs, as with another target",
        )

    def around(loaded: SeparateKernel, places: Addresses, run: Callable[[], None]) -> None:
        group = loaded.group
        assert group is not None and group.kernel is not None, "noted before the run"
        operands = [*zip(group.kernel.operands, places, strict=True)]
        # Copy inputs before the launch: an output may overwrite them.
        inputs = tuple(_arrays(operands, output=False))
        run()
        see(RecordedLaunch(group, inputs, tuple(_arrays(operands, output=True))))

    target = SeparateTarget(program.target, around)
    watched = LocalProgram(program.tiled, program.plan, program.host, runtime=target)
    assert watched.calls is not None, "a program with a target has calls"
    for launch, loaded in loaded_kernels(watched.calls):
        loaded.group = launch.group
    watched(*stacks)


def _arrays(operands: Sequence[tuple[Operand, Any]], *, output: bool) -> Iterator[Array]:
    for operand, place in operands:
        if operand.output is output:
            memory = (ctypes.c_char * operand.nbytes).from_address(int(place) or _NOWHERE)
            array = np.frombuffer(bytes(memory), operand.dtype.numpy)
            yield array.reshape(operand.shape)


_NOTHING = ctypes.create_string_buffer(1)
_NOWHERE = ctypes.addressof(_NOTHING)  # stands for the null address of an operand of size 0
