"""A bit for every digit of the devices' numbers that a program can tell devices apart by."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from weft.mesh import Axis, Mesh, MeshAxes
from weft.mesh.algebra import Axes, cut
from weft.mesh.axes import named
from weft.mesh.parts import Atoms, atoms_of, mesh_spans, span_of
from weft.varying.world import World


@dataclass(frozen=True, slots=True)
class Frame:
    """The digits of the devices in the order of a mesh, and the bit of the first of them."""

    mesh: Mesh
    atoms: Atoms
    first: int

    @property
    def everything(self) -> int:
        """All of its bits; a digit of size 1, where there is one device, tells nobody apart."""
        return self.bits(n for n, size in enumerate(self.atoms.sizes) if size > 1)

    def bits(self, digits: Iterable[int]) -> int:
        """The bits of some digits."""
        return sum(1 << self.first + n for n in digits)


class AxisBits:
    """The digits of a world, then those of each mesh that is in another order or crosses them.

    What is equal along a digit is equal on any two devices that differ in that digit alone. This
    is said for every frame by itself: a difference along one is seen along all digits of another.
    Above these bits stand as many again for what is equal as long as devices are in lockstep,
    but not where one is a turn of a loop ahead, or makes a random number of its own: the skew.
    """

    def __init__(self, world: World, used: Iterable[MeshAxes]) -> None:
        self.world = world
        self.frames = [Frame(world.mesh, world.atoms, 0)]
        self.width = len(world.atoms.sizes)
        self._of_mesh: dict[Mesh, Frame] = {}
        self._along: dict[MeshAxes, tuple[int, int]] = {}
        self._parts: dict[MeshAxes, tuple[tuple[Axis, int], ...]] = {}
        listed: dict[Mesh, list[MeshAxes]] = {mesh: [] for mesh in world.meshes.values()}
        for axes in used:
            listed.setdefault(named(axes.mesh, world.meshes), []).append(axes)
        for mesh, all_axes in listed.items():
            self._of_mesh[mesh] = self._frame(mesh, all_axes)
        self.everything = sum(frame.everything for frame in self.frames)
        self.skew = self.everything << self.width

    def _frame(self, mesh: Mesh, used: Iterable[MeshAxes]) -> Frame:
        spans = mesh_spans(mesh)
        if self.world.aligned(mesh) and self.world.atoms.dims_of(spans) is not None:
            return self.frames[0]
        spans += [span_of(axis, mesh) for axes in used for axis in axes.axes]
        frame = Frame(mesh, atoms_of(mesh.size, spans), self.width)
        self.frames.append(frame)
        self.width += len(frame.atoms.sizes)
        return frame

    def skewed(self, mask: int) -> int:
        """A mask as skew: what it varies along, other devices may be ahead along."""
        low = (1 << self.width) - 1
        return (mask & low) << self.width | mask & ~low

    def plain(self, mask: int) -> int:
        """A mask whose skew counts as a difference, as it does where devices run by themselves."""
        return mask | mask >> self.width

    def others(self, frame: Frame) -> tuple[int, ...]:
        """Everything, of each frame but this one."""
        return tuple([other.everything for other in self.frames if other is not frame])

    def frame_of(self, axes: MeshAxes) -> Frame:
        """The frame that the axes belong to."""
        return self._of_mesh[named(axes.mesh, self.world.meshes)]

    def along(self, axes: MeshAxes) -> tuple[int, int]:
        """The bits that lie wholly within axes, and those that a difference along them touches.

        Both are in the frame of the axes; they differ for a part of an axis that crosses others.
        """
        found = self._along.get(axes)
        if found is None:
            mesh, frame = named(axes.mesh, self.world.meshes), self.frame_of(axes)
            covered = touched = 0
            for axis in axes.axes:
                digits = frame.atoms.dims(span_of(axis, mesh))
                if digits is None:
                    whole = frame.atoms.dims(span_of(Axis(axis.name), mesh))
                    assert whole is not None, "the axes of a mesh are digits of its frame"
                    touched |= frame.bits(whole)
                else:
                    covered |= frame.bits(digits)
            found = self._along[axes] = covered, covered | touched
        return found

    def seen(self, axes: MeshAxes) -> int:
        """The bits that a difference along axes is seen along, those of other frames too."""
        touched = self.along(axes)[1]
        return touched | sum(self.others(self.frame_of(axes))) if touched else 0

    def parts(self, axes: MeshAxes) -> tuple[tuple[Axis, int], ...]:
        """The axes, cut into the parts that have a bit of their own, and what each part touches."""
        found = self._parts.get(axes)
        if found is None:
            made = [piece for axis in axes.axes for piece in self._cut(axis, axes)]
            both = [(piece, self.along(MeshAxes(axes.mesh, (piece,)))[1]) for piece in made]
            found = self._parts[axes] = tuple(both)
        return found

    def _cut(self, axis: Axis, axes: MeshAxes) -> Axes:
        """An axis, cut where its digits begin."""
        mesh, atoms = named(axes.mesh, self.world.meshes), self.frame_of(axes).atoms
        stride, size = span_of(Axis(axis.name), mesh)
        digits = atoms.dims((stride, size)) or ()
        return cut(
            axis, [stride * size // (atoms.strides[n] * atoms.sizes[n]) for n in digits], mesh
        )
