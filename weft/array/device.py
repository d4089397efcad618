"""Virtual devices: who they are, and where they stand in a mesh."""

from __future__ import annotations

from dataclasses import dataclass

from weft.errors import WeftError
from weft.mesh import Mesh, as_mesh


@dataclass(frozen=True, slots=True)
class Device:
    """A virtual device of this process, as real to a program as any other."""

    id: int
    position: tuple[tuple[str, int], ...] = ()  # along each axis of its mesh

    platform = "lockstep"

    def __repr__(self) -> str:
        where = ", ".join(f"{name}={n}" for name, n in self.position)
        return f"Device({self.id}{', ' if where else ''}{where})"


def devices(given: object = 1) -> tuple[Device, ...]:
    """The devices of a mesh, in its order; or so many, without one."""
    if isinstance(given, int):
        if given < 1:
            raise WeftError(f"{given} devices", help="ask for at least one")
        Mesh(devices=given).check_listed()
        return tuple(Device(n) for n in range(given))
    mesh = as_mesh(given)
    mesh.check_listed()
    return tuple(device_at(mesh, place) for place in range(mesh.size))


def device_at(mesh: Mesh, place: int) -> Device:
    """The device at a place in the order of a mesh."""
    rest, at = place, []
    for name, size in reversed(mesh.axes):
        rest, digit = divmod(rest, size)
        at.append((name, digit))
    number = place if mesh.device_ids is None else mesh.device_ids[place]
    return Device(number, tuple(reversed(at)))
