"""The bits of varying masks: one for each digit of device numbers that a program distinguishes."""

from __future__ import annotations

from collections.abc import Iterable

from weft.mesh import Axis, Mesh, MeshAxes
from weft.mesh.algebra import Axes, cut
from weft.mesh.axes import named
from weft.mesh.parts import Atoms, atoms_of, mesh_spans, span_of
from weft.records import dataclass
from weft.varying.world import World


@dataclass(frozen=True, slots=True)
class Frame:
    """The digits of device numbers in the order of one mesh, and the bit of the first."""

    mesh: Mesh
    atoms: Atoms
    first: int

    @property
    def everything(self) -> int:
        """All of its bits; a digit of size 1 (a single device) distinguishes nothing."""
        return self.bits(n for n, size in enumerate(self.atoms.sizes) if size > 1)

    def bits(self, digits: Iterable[int]) -> int:
        """The bits of some digits."""
        return sum(1 << self.first + n for n in digits)


class AxisBits:
    """The digits of a world, then those of each mesh with another device order or crossing axes.

    A value that is uniform along a digit is equal on any two devices that differ in that digit
    alone. Frames are independent: a difference along one counts along all digits of another. Above
    these bits are as many again for the skew: values that are uniform while devices run in
    lockstep, but not if one is a loop iteration ahead, or draws its own random number.
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
        """A mask as skew: along these digits other devices may be iterations ahead."""
        low = (1 << self.width) - 1
        return (mask & low) << self.width | mask & ~low

    def plain(self, mask: int) -> int:
        """A mask with its skew as variation, as where devices do not run in lockstep."""
        return mask | mask >> self.width

    def others(self, frame: Frame) -> tuple[int, ...]:
        """All bits of the other frames."""
        return tuple([other.everything for other in self.frames if other is not frame])

    def frame_of(self, axes: MeshAxes) -> Frame:
        """The frame that the axes belong to."""
        return self._of_mesh[named(axes.mesh, self.world.meshes)]

    def along(self, axes: MeshAxes) -> tuple[int, int]:
        """The bits that lie wholly within axes, and those that overlap them.

        Both are in the frame of the axes; they differ for a part of an axis that crosses others.
        """
        bits = self._along.get(axes)
        if bits is None:
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
            bits = self._along[axes] = covered, covered | touched
        return bits

    def seen(self, axes: MeshAxes) -> int:
        """The bits affected by a difference along axes, in other frames too."""
        touched = self.along(axes)[1]
        return touched | sum(self.others(self.frame_of(axes))) if touched else 0

    def parts(self, axes: MeshAxes) -> tuple[tuple[Axis, int], ...]:
        """The axes, cut into parts with a bit each, and the bits that each part overlaps."""
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
