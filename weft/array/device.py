"""Devices: numbers, processes, memories, and mesh coordinates."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field

from weft.array.addressable import Addressable, addressable_along
from weft.array.host import HOST_MEMORY
from weft.array.memory import Memory
from weft.errors import WeftError
from weft.mesh import Axis, Mesh, as_mesh
from weft.mesh.axes import inner_axes
from weft.records import dataclass
from weft.workers import member, workers_of


@dataclass(frozen=True, slots=True)
class Device:
    """A device, of this process or of another."""

    id: int  # unique over all processes
    position: tuple[tuple[str, int], ...] = ()  # coordinates along the axes of its mesh
    process_index: int = 0
    platform: str = "lockstep"
    memories: tuple[Memory, ...] = (HOST_MEMORY,)  # default memory first
    attributes: Mapping[str, object] = field(default_factory=dict, compare=False)

    def memory(self, kind: str | None = None) -> Memory:
        """The memory of a kind; by default the first."""
        for memory in self.memories:
            if kind is None or memory.kind == kind:
                return memory
        kinds = ", ".join(memory.kind for memory in self.memories)
        raise WeftError(f"device {self.id} has no memory {kind!r}", help=f"its memories: {kinds}")

    def __repr__(self) -> str:
        where = [f"{name}={n}" for name, n in self.position]
        where += [f"process {self.process_index}"] if self.process_index else []
        return f"Device({', '.join([str(self.id), *where])})"


def devices(
    requested: object = None, *, stacked: Iterable[Axis | str] | None = None
) -> tuple[Device, ...]:
    """The devices of a mesh, in its order; or a number of devices without a mesh.

    By default one of each worker. A process holds those along `stacked` axes; by default launched
    workers share them evenly, and a process that was started alone holds all.
    """
    if requested is None:
        me = member()
        return (Device(0),) if me is None else tuple(Device(n, (), n) for n in range(me.size))
    if isinstance(requested, int):
        if requested < 1:
            raise WeftError(f"{requested} devices", help="ask for at least one")
        Mesh(devices=requested).check_listed()
        return tuple(Device(n) for n in range(requested))
    mesh = as_mesh(requested)
    mesh.check_listed()
    if stacked is None and (me := workers_of(mesh)) is not None:
        stacked = inner_axes(mesh, mesh.size // me.size)
    here = None if stacked is None else addressable_along(mesh, stacked)
    return tuple(device_at(mesh, place, here) for place in range(mesh.size))


def device_at(mesh: Mesh, place: int, here: Addressable | None = None) -> Device:
    """The device at a place in the order of a mesh."""
    rest, at = place, []
    for name, size in reversed(mesh.axes):
        rest, coordinate = divmod(rest, size)
        at.append((name, coordinate))
    number = place if mesh.device_ids is None else mesh.device_ids[place]
    return Device(number, tuple(reversed(at)), 0 if here is None else int(here.processes[place]))
