"""Processes with some of the devices each: all together they give what lockstep gives.

Processes are threads here. Every one of them runs the same executable, which is told by the process
alone which devices it has.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.optimize.local_programs import local_program as random_program
from tests.run.in_memory import Board, InMemory
from tests.tolerance import assert_close
from weft import pipeline
from weft.array.stacked import Stacked, stack
from weft.emit.numpy import Numpy
from weft.executable.process import Process
from weft.ir.module import Module
from weft.ir.types import Array
from weft.mesh import Axis, Mesh
from weft.pipeline import local_program
from weft.run import LocalProgram


class Processes:
    """A program on as many processes as its devices need."""

    def __init__(self, module: Module, stacked: Sequence[Axis], timeout: float = 30.0) -> None:
        self.board = Board(timeout)
        self.first = local_program(module, stacked=stacked, process=self.process(0))
        world, absent = self.first.world, self.first.layout.absent
        which = world.atoms.index(absent, np.arange(world.count))
        self.places = [np.flatnonzero(which == n) for n in range(which.max() + 1)]
        self.programs = [self.loaded(int(world.devices()[p[0]])) for p in self.places]

    def process(self, device: int) -> Process:
        return Process(device, InMemory(self.board))

    def loaded(self, device: int) -> LocalProgram:
        """The same executable in another process."""
        first, host = self.first, Numpy(self.process(device))
        return LocalProgram(first.tiled, first.plan, host, first.target)

    def given(self, number: int, pieces: Sequence[Array]) -> list[Stacked]:
        """What one process has of the arguments, which are in the order of the mesh."""
        program, at = self.programs[number], self.places[number][0]
        atoms, layout, found = program.atoms, program.layout, []
        for n, array in enumerate(pieces):
            data = stack(np.asarray(array), atoms).data
            window: list[slice] = []
            for d, size in enumerate(layout.shape(program.masks[n])):  # type: ignore[arg-type]
                here = int(at) // atoms.strides[d] % atoms.sizes[d] if d in layout.absent else 0
                window.append(slice(here, here + size))
            found.append(Stacked(data[tuple(window)], atoms))
        return found

    def run(self, pieces: Sequence[Array]) -> list[Array]:
        """Every device's results, in the order of the mesh."""
        works = [
            partial(program, *self.given(number, pieces))
            for number, program in enumerate(self.programs)
        ]
        made = self.board.run(works)
        results = []
        for n in range(len(made[0])):
            rows = {
                int(place): made[number][n].piece(int(place))
                for number, places in enumerate(self.places)
                for place in places
            }
            results.append(np.stack([rows[place] for place in sorted(rows)]))
        return results


def lockstep(module: Module, pieces: Sequence[Array]) -> list[Array]:
    """The same in one process."""
    program = local_program(module)
    given = []
    for n, array in enumerate(pieces):
        head = program.layout.shape(program.masks[n])  # type: ignore[arg-type]
        data = stack(np.asarray(array), program.atoms).data
        given.append(Stacked(data[tuple([slice(0, size) for size in head])], program.atoms))
    return [made.pieces() for made in program(*given)]


def parts(mesh: Mesh) -> list[list[Axis]]:
    """What may be stacked: nothing, each axis, half of one, everything."""
    names = [Axis(name) for name, _ in mesh.axes]
    halves = [Axis(n, before, 2) for n, size in mesh.axes if size == 4 for before in (1, 2)]
    return [[], *[[axis] for axis in (*names, *halves)], names]


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 100_000), st.integers(4, 20), st.data())
def test_random_programs(seed: int, count: int, data: st.DataObject):
    """Whole numbers: whoever sums up, and in whatever order, they are the same."""
    program = random_program(seed, count)
    order = program.mesh.devices().reshape(-1)
    pieces = [array[order] for array in program.arrays(seed)]
    expected = lockstep(program.module, pieces)
    stacked = data.draw(st.sampled_from(parts(program.mesh)))
    processes = Processes(program.module, stacked)
    for _ in range(2):  # the second time into memory that is planned
        for ours, theirs in zip(processes.run(pieces), expected, strict=True):
            np.testing.assert_array_equal(ours, theirs)
