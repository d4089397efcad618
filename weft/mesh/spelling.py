"""The user's spelling of shardings, `P("data", None)`, and conversion from JAX's classes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass  # traced code makes them: TorchDynamo knows these only
from types import EllipsisType
from typing import Any, ClassVar, TypeAlias

from weft.errors import Unsupported, WeftError
from weft.mesh.algebra import in_mesh_order, merged, overlaps
from weft.mesh.axes import Axis, Mesh
from weft.mesh.sharding import DimSharding, Sharding, parse_sharding

DimSpelling: TypeAlias = (
    str | EllipsisType | DimSharding | Sequence["str | Axis | EllipsisType"] | None
)
_AXIS = re.compile(r"([^:]+)(?::\((\d+)\)(\d+))?")
_MESH_AXIS = re.compile(r"\s*([^=,\s]+)\s*=\s*(\d+)\s*")
_EXAMPLE = 'write P("data", None, ("data", "model")), or ... for a dim that is left open'


@dataclass(frozen=True, slots=True, init=False)
class P:
    """A partition spec, dim by dim: `P("data", None, ("data", "model"))`.

    None keeps a dim whole, `...` leaves it open, `("data", ...)` may be split further; dims that
    are not named stay whole. `"data:(1)2"` is the major part, of size 2, of an axis.
    """

    OPEN: ClassVar[EllipsisType] = ...  # an open dim
    dims: tuple[DimSharding, ...]
    replicated: tuple[Axis, ...]  # axes that must not split the tensor
    unreduced: tuple[Axis, ...]  # axes along which the tensor is a partial sum

    def __init__(
        self,
        *dims: DimSpelling,
        replicated: Iterable[str | Axis] = (),
        unreduced: Iterable[str | Axis] = (),
        priorities: Sequence[int | None] = (),
    ) -> None:
        _check_lists(replicated, unreduced, priorities)
        if len(priorities) > len(dims):
            raise WeftError(
                f"{len(priorities)} priorities for {len(dims)} dims",
                help="give at most one priority for each dim; 0 is the strongest",
            )
        ranks = (*priorities, *[None] * (len(dims) - len(priorities)))
        object.__setattr__(self, "dims", tuple(map(_dim, dims, ranks)))
        object.__setattr__(self, "replicated", tuple(map(_axis, replicated)))
        object.__setattr__(self, "unreduced", tuple(map(_axis, unreduced)))

    def sharding(self, rank: int, mesh: Mesh, name: str | None = None) -> Sharding:
        """The sharding of a tensor of that rank on a mesh, which the module may hold by name."""
        _check_rank(self, rank)
        _check_axes(self, mesh)
        dims = [DimSharding(merged(d.axes, mesh), d.is_open, d.priority) for d in self.dims]
        dims += [DimSharding()] * (rank - len(dims))
        replicated = in_mesh_order(self.replicated, mesh)
        unreduced = in_mesh_order(self.unreduced, mesh)
        return Sharding(mesh if name is None else name, tuple(dims), replicated, unreduced)

    def __repr__(self) -> str:
        parts = [_dim_text(dim) for dim in self.dims]
        for word, axes in (("replicated", self.replicated), ("unreduced", self.unreduced)):
            if axes:
                parts.append(f"{word}={_tuple_text([_axis_text(a) for a in axes])}")
        if any(d.priority for d in self.dims):
            parts.append(f"priorities={_tuple_text([str(d.priority or 0) for d in self.dims])}")
        return f"P({', '.join(parts)})"


def _check_lists(replicated: object, unreduced: object, priorities: object) -> None:
    for word, axes in (("replicated", replicated), ("unreduced", unreduced)):
        if isinstance(axes, str) or not isinstance(axes, Iterable):
            raise WeftError(
                f"{word}={axes!r} is not a list of axes", help=f'write {word}=("data", "model")'
            )
    listed = priorities if isinstance(priorities, Sequence) else ["none"]
    if any(p is not None and not isinstance(p, int) for p in listed):
        raise WeftError(
            f"priorities={priorities!r} is not a list of numbers",
            help="give a number for each dim, 0 the strongest, or None: priorities=(0, None)",
        )


def _dim(spelled: DimSpelling, priority: int | None) -> DimSharding:
    match spelled:
        case DimSharding():
            return (
                spelled
                if priority is None
                else DimSharding(spelled.axes, spelled.is_open, priority)
            )
        case None:
            return DimSharding((), False, priority)
        case EllipsisType():
            return DimSharding((), True, priority)
        case str():
            return DimSharding((_axis(spelled),), False, priority)
        case tuple() | list():
            is_open = bool(spelled) and spelled[-1] is ...
            axes = spelled[:-1] if is_open else spelled
            return DimSharding(tuple(map(_axis, axes)), is_open, priority)
        case _ if _is_unconstrained(spelled):
            return DimSharding((), True, priority)
    raise WeftError(f"{spelled!r} is not a sharding of a dim", help=_EXAMPLE)


def as_axes(given: Iterable[object]) -> tuple[Axis, ...]:
    """Axes of a mesh, or parts of them, by name."""
    return tuple(map(_axis, (given,) if isinstance(given, str) else given))


def _axis(axis: object) -> Axis:
    if isinstance(axis, Axis):
        return axis
    match = _AXIS.fullmatch(axis) if isinstance(axis, str) else None
    if match is None:
        raise WeftError(f"{axis!r} is not an axis of a mesh", help=_EXAMPLE)
    return Axis(match[1], int(match[2]), int(match[3])) if match[2] else Axis(match[1])


def _axis_text(axis: Axis) -> str:
    part = "" if axis.size is None else f":({axis.before}){axis.size}"
    return f'"{axis.name}{part}"'


def _dim_text(dim: DimSharding) -> str:
    parts = [*map(_axis_text, dim.axes), *(["..."] if dim.is_open else [])]
    if not parts:
        return "None"
    return parts[0] if len(parts) == 1 else _tuple_text(parts)


def _tuple_text(parts: list[str]) -> str:
    return f"({', '.join(parts)}{',' if len(parts) == 1 else ''})"


def _check_rank(spec: P, rank: int) -> None:
    if len(spec.dims) > rank:
        scalar = "; a scalar is P()" if rank == 0 else ""
        raise WeftError(
            f"{spec} is for {len(spec.dims)} dims, but the tensor has {rank}",
            help=f"name at most one entry for each dim{scalar}",
        )


def _check_axes(spec: P, mesh: Mesh) -> None:
    """Refuse unknown axes and axes that are used twice."""
    seen: list[Axis] = []
    for axis in (*(a for d in spec.dims for a in d.axes), *spec.replicated, *spec.unreduced):
        size = mesh.axis_sizes.get(axis.name)
        if size is None:
            raise WeftError(
                f"{spec}: the mesh has no axis {axis.name!r}", help=_axis_help(axis, mesh)
            )
        if axis.size is not None and (axis.size < 2 or size % (axis.before * axis.size)):
            raise WeftError(
                f"{spec}: {axis} is not a part of an axis of size {size}",
                help='a part "x:(before)size" needs sizes whose product divides that of the axis',
            )
        if any(overlaps(axis, other) for other in seen):
            raise WeftError(
                f"{spec} uses axis {axis.name!r} twice",
                help="an axis splits one dim of a tensor, or none",
            )
        seen.append(axis)


def _axis_help(axis: Axis, mesh: Mesh) -> str:
    import difflib  # imported here: a spec that is fine needs no suggestions

    names = [name for name, _ in mesh.axes]
    near = difflib.get_close_matches(axis.name, names, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return f"{hint}known: {', '.join(names) or 'none'}"


# Conversion from other libraries' meshes and shardings


def as_mesh(spelled: object) -> Mesh:
    """A mesh of ours or of JAX, a dict or pairs of sizes, or the text `data=2,model=4`."""
    match spelled:
        case Mesh():
            return spelled
        case str():
            return _mesh_from_text(spelled)
        case Mapping():
            return Mesh(spelled.items())
        case tuple() | list():
            return Mesh(spelled)
    names: Any = getattr(spelled, "axis_names", None)
    if names is None:
        raise WeftError(
            f"{_kind(spelled)} is not a mesh",
            help="write weft.Mesh(data=2, model=4), or give one of JAX's",
        )
    mesh: Any = spelled
    if type(spelled).__name__ == "AbstractMesh":  # whose attribute `devices` raises
        return Mesh(zip(map(str, names), map(int, mesh.axis_sizes), strict=True))
    devices = mesh.devices
    ids = tuple(int(device.id) for device in devices.flat)
    # JAX always lists the devices; in plain order they are left out, so that such a mesh equals one
    # of ours.
    iota = ids == tuple(range(len(ids)))
    return Mesh(zip(map(str, names), devices.shape, strict=True), None if iota else ids)


def _mesh_from_text(text: str) -> Mesh:
    parts = [_MESH_AXIS.fullmatch(part) for part in text.split(",")]
    if not all(parts):
        raise WeftError(
            f"{text!r} is not a mesh", help="write it as data=2,model=4, major axis first"
        )
    return Mesh((match[1], int(match[2])) for match in parts if match)


def as_sharding(
    spelled: object, rank: int, mesh: object = None, *, name: str | None = None
) -> Sharding:
    """A user's sharding of a tensor, converted to `Sharding`.

    Accepts a Sharding, a `P` or an equivalent tuple, sdy text, or JAX's NamedSharding or
    PartitionSpec. The mesh may be left out if the sharding has its own.
    """
    ours = None if mesh is None else as_mesh(mesh)
    if isinstance(spelled, str) and "<" in spelled:
        spelled = parse_sharding(spelled)
    if isinstance(spelled, Sharding):
        return _checked(spelled, rank, ours, name)
    if hasattr(spelled, "spec") and hasattr(spelled, "mesh"):
        theirs = as_mesh(spelled.mesh)
        _check_memory(spelled)
        _check_same_mesh(theirs, ours)
        spelled, ours = spelled.spec, theirs if ours is None else ours
    spec = _as_spec(spelled)
    if ours is None:
        raise WeftError(
            f"{spec} has no mesh",
            help="give the mesh: weft.Mesh(data=2, model=4)",
        )
    return spec.sharding(rank, ours, name)


def as_spec(sharding: object, rank: int) -> P:
    """A user's sharding of a tensor of that rank as a `P`, without its mesh."""
    if isinstance(sharding, str) and "<" in sharding:
        sharding = parse_sharding(sharding)
    if isinstance(sharding, Sharding):
        spec = P(*sharding.dims, replicated=sharding.replicated, unreduced=sharding.unreduced)
    else:
        spec = _as_spec(getattr(sharding, "spec", sharding))
    _check_rank(spec, rank)
    return spec


def _as_spec(sharding: object) -> P:
    if isinstance(sharding, P):
        return sharding
    # JAX's PartitionSpec, recognized without importing JAX; its unreduced axes are a set.
    partitions: Any = getattr(sharding, "_partitions", sharding)
    if isinstance(partitions, tuple | list):
        return P(*partitions, unreduced=sorted(getattr(sharding, "unreduced", ())))
    raise WeftError(f"{_kind(sharding)} is not a sharding", help=_EXAMPLE)


def _checked(sharding: Sharding, rank: int, mesh: Mesh | None, name: str | None) -> Sharding:
    """A `Sharding`, after the same checks as any other spelling."""
    if len(sharding.dims) != rank:
        raise WeftError(
            f"{sharding.body()} is for {len(sharding.dims)} dims, but the tensor has {rank}",
            help="give one dim sharding for each dim",
        )
    if isinstance(sharding.mesh, Mesh):
        _check_same_mesh(sharding.mesh, mesh)
        mesh = sharding.mesh
    if mesh is None:
        return sharding
    spec = P(*sharding.dims, replicated=sharding.replicated, unreduced=sharding.unreduced)
    return spec.sharding(rank, mesh, sharding.mesh if isinstance(sharding.mesh, str) else name)


def _check_same_mesh(theirs: Mesh, ours: Mesh | None) -> None:
    if ours is not None and not is_same_mesh(theirs, ours):
        raise WeftError(
            f"a sharding on the mesh {theirs} in a program on {ours}",
            help="use one mesh for the whole program",
        )


def is_same_mesh(mesh: Mesh, other: Mesh) -> bool:
    """Whether two meshes are equal, where one without device ids matches any order."""
    orders = (mesh.device_ids, other.device_ids)
    return mesh == other or (mesh.axes == other.axes and None in orders)


def held_mesh(sharding: object) -> object:
    """The mesh object of a sharding of Weft's or JAX's; None if it has a mesh name or none."""
    mesh = getattr(sharding, "mesh", None)
    return None if isinstance(mesh, str) else mesh


def _check_memory(given: object) -> None:
    kind = getattr(given, "memory_kind", None)
    if kind not in (None, "device"):
        raise Unsupported(
            f"a sharding in memory {kind!r}", help="leave out memory_kind: values are on devices"
        )


def _is_unconstrained(given: object) -> bool:
    return type(given).__name__ == "UnconstrainedSingleton"


def _kind(given: object) -> str:
    return f"{type(given).__name__} {given!r}"[:120]
