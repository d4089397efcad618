"""The bits of varying masks: one for each sub-axis that a program distinguishes."""

from __future__ import annotations

from collections.abc import Iterable

from weft.mesh import Axis, Mesh, MeshAxes
from weft.mesh.algebra import Axes, cut
from weft.mesh.axes import named
from weft.mesh.sub_axes import SubAxes, mesh_spans, span_of, sub_axes_of
from weft.records import dataclass
from weft.varying.world import World


@dataclass(frozen=True, slots=True)
class Frame:
    """The sub-axes of one mesh, in its device order, and the bit of the first."""

    mesh: Mesh
    sub_axes: SubAxes
    first: int

    @property
    def everything(self) -> int:
        """All of its bits; a sub-axis of size 1 (a single device) distinguishes nothing."""
        return self.bits(n for n, size in enumerate(self.sub_axes.sizes) if size > 1)

    def bits(self, dims: Iterable[int]) -> int:
        """The bits of some sub-axes."""
        return sum(1 << self.first + n for n in dims)


class AxisBits:
    """The sub-axes of a world, then those of each mesh with another device order or crossing axes.

    A value that is uniform along a sub-axis is equal on any two devices that differ along that one
    alone. Frames are independent: a difference along one counts along all sub-axes of another.
    Above these bits are as many again for the skew: values that are uniform while devices run in
    lockstep, but not if one is a loop iteration ahead, or draws its own random number.
    """

    def __init__(self, world: World, used: Iterable[MeshAxes]) -> None:
        self.world = world
        self.frames = [Frame(world.mesh, world.sub_axes, 0)]
        self.width = len(world.sub_axes.sizes)
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
        if self.world.aligned(mesh) and self.world.sub_axes.dims_of(spans) is not None:
            return self.frames[0]
        # Another order of devices, or axes that cross the world's: sub-axes of its own, fine enough
        # for the axes in use.
        spans += [span_of(axis, mesh) for axes in used for axis in axes.axes]
        frame = Frame(mesh, sub_axes_of(mesh.size, spans), self.width)
        self.frames.append(frame)
        self.width += len(frame.sub_axes.sizes)
        return frame

    def skewed(self, mask: int) -> int:
        """A mask as skew: along these sub-axes other devices may be iterations ahead."""
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
                dims = frame.sub_axes.dims(span_of(axis, mesh))
                if dims is None:  # it crosses sub-axes: a difference may be along any of them
                    whole = frame.sub_axes.dims(span_of(Axis(axis.name), mesh))
                    assert whole is not None, "the axes of a mesh are sub-axes of its frame"
                    touched |= frame.bits(whole)
                else:
                    covered |= frame.bits(dims)
            bits = self._along[axes] = covered, covered | touched
        return bits

    def affected_bits(self, axes: MeshAxes) -> int:
        """The bits affected by a difference along axes, in other frames too."""
        touched = self.along(axes)[1]
        return touched | sum(self.others(self.frame_of(axes))) if touched else 0

    def parts(self, axes: MeshAxes) -> tuple[tuple[Axis, int], ...]:
        """The axes, cut into parts with a bit each, and the bits that each part overlaps."""
        parts = self._parts.get(axes)
        if parts is None:
            pieces = [piece for axis in axes.axes for piece in self._cut(axis, axes)]
            both = [(piece, self.along(MeshAxes(axes.mesh, (piece,)))[1]) for piece in pieces]
            parts = self._parts[axes] = tuple(both)
        return parts

    def _cut(self, axis: Axis, axes: MeshAxes) -> Axes:
        """An axis, cut where its sub-axes begin."""
        mesh, sub_axes = named(axes.mesh, self.world.meshes), self.frame_of(axes).sub_axes
        stride, size = span_of(Axis(axis.name), mesh)
        dims = sub_axes.dims((stride, size)) or ()
        return cut(
            axis, [stride * size // (sub_axes.strides[n] * sub_axes.sizes[n]) for n in dims], mesh
        )
