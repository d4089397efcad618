"""Meshes of named axes, and axes that are parts of others."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass  # traced code makes them: TorchDynamo knows these only

import numpy as np
import numpy.typing as npt

from weft.errors import WeftError

_MESH_AXIS = re.compile(r'"([^"]+)"\s*=\s*(\d+)')
_DEVICES = re.compile(r"device_ids=\[([\d, ]*)\]")
_MOST = 1 << 24  # the most devices of an explicit list
_NUMBERED = (1 << 31) - 1  # device ids are 32 bits in StableHLO and JAX
_AXIS = re.compile(r'(?:#sdy<axis_ref)?\s*"([^"]+)"(?::\((\d+)\)(\d+))?>?')


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis of a mesh, or the part of it that starts after `before` devices and has `size`."""

    name: str
    before: int = 1
    size: int | None = None  # None for the whole axis

    def __str__(self) -> str:
        return (
            f'"{self.name}"' if self.size is None else f'"{self.name}":({self.before}){self.size}'
        )


@dataclass(frozen=True, slots=True, init=False)
class Mesh:
    """Named axes with sizes, major to minor, and the devices in that order.

    `Mesh(data=2, model=4)`, or pairs: `Mesh((("data", 2), ("model", 4)))`.
    """

    axes: tuple[tuple[str, int], ...]
    device_ids: tuple[int, ...] | None = None  # None for 0, 1, 2, ...

    def __init__(
        self,
        axes: Iterable[tuple[str, int]] = (),
        device_ids: Iterable[int] | None = None,
        **sizes: int,
    ) -> None:
        given = (*_pairs(axes), *sizes.items())
        pairs = tuple([(n, int(s) if isinstance(s, np.integer) else s) for n, s in given])
        for n, (name, size) in enumerate(pairs):
            _check_axis(name, size, pairs[:n])
        ids = None if device_ids is None else _ids(device_ids)
        count = math.prod(size for _, size in pairs)
        if count > _NUMBERED:
            raise WeftError(
                f"a mesh of {count:,} devices is too large: devices are numbered in 32 bits",
                help=f"write a mesh of at most {_MOST:,} devices",
            )
        # Without axes it is Shardy's maximal mesh, which names a device and has none.
        if ids is not None and pairs and len(ids) != count:
            raise WeftError(
                f"the axes make {count} devices, but {len(ids)} device ids are given",
                help="give one id for each device, in the order of the axes, major first",
            )
        object.__setattr__(self, "axes", pairs)
        object.__setattr__(self, "device_ids", ids)

    @property
    def size(self) -> int:
        """The number of devices."""
        return (
            math.prod(size for _, size in self.axes)
            if self.device_ids is None
            else len(self.device_ids)
        )

    @property
    def axis_sizes(self) -> dict[str, int]:
        """The size of each axis, by name."""
        return dict(self.axes)

    def devices(self) -> npt.NDArray[np.int64]:
        """The device ids, as an array with one dim an axis."""
        self.check_listed()
        ids = np.arange(self.size) if self.device_ids is None else np.array(self.device_ids)
        return ids.reshape([size for _, size in self.axes])

    def check_listed(self) -> None:
        """Refuse a mesh with too many devices for an explicit list."""
        if self.size > _MOST:
            raise WeftError(
                f"a mesh of {self.size:,} devices is too large to be listed",
                help=f"write a mesh of at most {_MOST:,} devices",
            )

    def position(self, device: int) -> tuple[int, ...]:
        """The coordinates of a device along each axis."""
        place = device if self.device_ids is None else self.device_ids.index(device)
        at: list[int] = []
        for _, size in reversed(self.axes):
            place, coordinate = divmod(place, size)
            at.append(coordinate)
        return tuple(reversed(at))

    def groups(self, axes: tuple[Axis, ...]) -> tuple[tuple[int, ...], ...]:
        """Device groups along these axes: one group per row, major axis first."""
        devices = self.devices()
        known = dict(self.axes)
        shape: list[int] = []
        where: dict[Axis, int] = {}
        for name, size in self.axes:
            # The devices as an array with a dim for each of the sub-axes, and one for what lies
            # before, between and behind them.
            parts = sorted((a for a in axes if a.name == name and a.size), key=lambda a: a.before)
            if Axis(name) in axes:
                where[Axis(name)] = len(shape)
                shape.append(size)
                continue
            done = 1
            for part in parts:
                assert part.size is not None
                shape.append(part.before // done)
                where[part] = len(shape)
                shape.append(part.size)
                done = part.before * part.size
            shape.append(size // done)
        for axis in axes:
            if axis.name not in known or axis not in where:
                raise WeftError(f"the mesh has no axis {axis}", help=f"known: {', '.join(known)}")
        split = devices.reshape(shape)
        inner = [where[a] for a in axes]
        rest = [d for d in range(split.ndim) if d not in inner]
        count = math.prod(split.shape[d] for d in inner)
        # [groups, devices of a group]: a group for each position along all other dims.
        rows = split.transpose([*rest, *inner]).reshape(-1, count)
        return tuple([tuple(row) for row in rows.tolist()])

    def __str__(self) -> str:
        parts = ["[" + ", ".join(f'"{name}"={size}' for name, size in self.axes) + "]"]
        if self.device_ids is not None:
            parts.append(f"device_ids=[{', '.join(map(str, self.device_ids))}]")
        return f"<{', '.join(parts)}>"


def named(mesh: str | Mesh, meshes: Mapping[str, Mesh]) -> Mesh:
    """The mesh of a name, or the mesh itself; an unknown name is an error with the known ones."""
    if isinstance(mesh, Mesh):
        return mesh
    if mesh not in meshes:
        known = ", ".join(meshes) or "none"
        raise WeftError(f"the module has no mesh {mesh!r}", help=f"known: {known}")
    return meshes[mesh]


def _pairs(axes: Iterable[tuple[str, int]]) -> tuple[tuple[str, int], ...]:
    try:
        return tuple((name, size) for name, size in axes)
    except (TypeError, ValueError):
        raise WeftError(
            f"{axes!r} does not name the axes of a mesh", help="write Mesh(data=2, model=4)"
        ) from None


def _ids(device_ids: Iterable[int]) -> tuple[int, ...]:
    """Device ids, each once."""
    try:
        ids = tuple([operator.index(d) for d in device_ids])
        if len(set(ids)) == len(ids) and min(ids, default=0) >= 0:
            return ids
    except TypeError:
        pass
    raise WeftError(
        f"device_ids are {device_ids!r}"[:120],
        help="give the number of every device, once, in the order of the axes: (0, 1, 2, 3)",
    )


def _check_axis(name: object, size: object, before: tuple[tuple[str, int], ...]) -> None:
    is_size = isinstance(size, int) and not isinstance(size, bool) and size >= 1
    if not isinstance(name, str) or not name or not is_size:
        raise WeftError(
            f"axis {name!r} of size {size!r}: an axis has a name and a size of at least 1",
            help="write Mesh(data=2, model=4)",
        )
    if any(name == other for other, _ in before):
        raise WeftError(
            f"the mesh has axis {name!r} twice", help="give every axis a different name"
        )


def parse_mesh(text: str) -> Mesh:
    """`#sdy.mesh<["x"=2, "y"=4]>` as a mesh."""
    devices = _DEVICES.search(text)
    ids = tuple(int(d) for d in devices[1].split(",") if d.strip()) if devices else None
    return Mesh(tuple((n, int(s)) for n, s in _MESH_AXIS.findall(text)), ids)


def parse_axis(text: str) -> Axis:
    """`"x"` or the sub-axis `"x":(2)4`."""
    match = _AXIS.fullmatch(text.strip())
    if match is None:
        raise WeftError(f"{text!r} is not an axis", help='expected "name" or "name":(before)size')
    if match[2] is None:
        return Axis(match[1])
    return Axis(match[1], int(match[2]), int(match[3]))


def inner_axes(mesh: Mesh, count: int) -> tuple[Axis, ...]:
    """The minor axes, or parts of them, along which so many consecutive devices lie."""
    axes: list[Axis] = []
    for name, size in reversed(mesh.axes):
        if count == 1:
            break
        if count % size == 0:
            axes.append(Axis(name))
            count //= size
        elif size % count == 0:
            # The minor part of the axis: consecutive devices lie along it.
            axes.append(Axis(name, size // count, count))
            count = 1
        else:
            break
    if count != 1:
        raise WeftError(
            f"the devices of a worker do not follow the axes of the mesh {mesh}",
            help="choose axes whose sizes, from the last one on, multiply to the devices of one "
            "worker, or are divided by them",
        )
    return tuple(reversed(axes))
