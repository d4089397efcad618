"""A program on processes that are threads.

Every process runs the same executable, and is told by its `Process` alone which devices it has.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from weft.array.stacked import Stacked, stack
from weft.emit.numpy import host_of
from weft.executable.process import Process
from weft.executable.read import read_tiled
from weft.executable.text import tiled_text
from weft.executable.verify import verify_tiled
from weft.ir.module import Module
from weft.ir.types import Array
from weft.mesh import Axis
from weft.pipeline import local_program
from weft.run import LocalProgram
from weft.run.in_memory import InMemory, Mailboxes


class Processes:
    """A program on as many processes as its devices need."""

    def __init__(
        self,
        module: Module,
        stacked: Sequence[Axis],
        timeout: float = 30.0,
        transport: type[InMemory] = InMemory,
    ) -> None:
        self.transport = transport
        self.boxes, self.transports = Mailboxes(timeout), list[InMemory]()
        self.first = local_program(module, stacked=stacked, process=self.process(0))
        text = tiled_text(self.first.tiled, self.first.plan)
        self.read = read_tiled(text.text, text.resources)  # as it would be sent to the others
        verify_tiled(*self.read)
        world, absent = self.first.world, self.first.stack_dims.absent
        which = world.sub_axes.index(absent, np.arange(world.count))
        self.places = [np.flatnonzero(which == n) for n in range(which.max() + 1)]
        self.programs = [self.loaded(int(world.devices()[p[0]])) for p in self.places]

    @property
    def sent(self) -> int:
        """The bytes that all processes have sent."""
        return sum(transport.nbytes for transport in self.transports)

    def process(self, device: int) -> Process:
        self.transports.append(self.transport(self.boxes))
        return Process(device, self.transports[-1])

    def loaded(self, device: int) -> LocalProgram:
        """The same executable in another process."""
        return LocalProgram(*self.read, host_of(self.process(device)), self.first.target)

    def given(self, number: int, pieces: Sequence[Array]) -> list[Stacked]:
        """What one process has of the arguments, which are in the order of the mesh."""
        program, at = self.programs[number], self.places[number][0]
        sub_axes, stack_dims, found = program.sub_axes, program.stack_dims, []
        for n, array in enumerate(pieces):
            data = stack(np.asarray(array), sub_axes).data
            window: list[slice] = []
            for d, size in enumerate(stack_dims.shape(program.masks[n])):  # type: ignore[arg-type]
                here = (
                    int(at) // sub_axes.strides[d] % sub_axes.sizes[d]
                    if d in stack_dims.absent
                    else 0
                )
                window.append(slice(here, here + size))
            found.append(Stacked(data[tuple(window)], sub_axes))
        return found

    def run(self, pieces: Sequence[Array]) -> list[Array]:
        """Every device's results, in the order of the mesh."""
        works = [
            partial(program, *self.given(number, pieces))
            for number, program in enumerate(self.programs)
        ]
        made = self.boxes.run(works)
        results = []
        for n in range(len(made[0])):
            rows = {
                int(place): made[number][n].piece(int(place))
                for number, places in enumerate(self.places)
                for place in places
            }
            results.append(np.stack([rows[place] for place in sorted(rows)]))
        return results
