"""What has no kernel on stacks runs device by device, or group by group, by its own reference."""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from weft.array.stream import calling
from weft.errors import Unsupported, WeftError
from weft.executable.items import Site
from weft.ir.module import Module, Node, Region, Value
from weft.ir.op import RegionCall
from weft.ir.reading import captured
from weft.ir.types import Array, TensorType
from weft.kernels.host import HostKernel, several
from weft.mesh import Mesh
from weft.ops.callbacks import called_by_each
from weft.ops.custom import CustomCall
from weft.varying.world import World

_MEETING = "move the collective out of the reduction, sort or scatter"


def finished(steps: Generator[Any, Any, tuple[Any, ...]]) -> tuple[Any, ...]:
    """The results of a reference that must not wait for other devices."""
    try:
        next(steps)
    except StopIteration as end:
        results: tuple[Any, ...] = end.value
        return results
    raise Unsupported("devices meet inside a region that runs by itself", help=_MEETING)


@dataclass
class OneDevice:
    """What a control op may ask of the device that runs it."""

    module: Module
    device: tuple[int, int]

    @property
    def meshes(self) -> Mapping[str, Mesh]:
        """The meshes of the module, by name."""
        return self.module.meshes

    def call(self, function: str, *values: Any) -> Generator[Any, Any, tuple[Any, ...]]:
        """Run a function of the module."""
        yield from ()
        body = self.module.function(function).body
        return PlainRegion(body, dict(zip(body.args, values, strict=True)), self)()

    def refuse(self, what: str) -> NoReturn:
        """Say that a thing is not done in lockstep."""
        raise Unsupported(
            f"{what} in a program that runs in lockstep",
            help="pass values as arguments and results, or use collectives",
        )

    def parallel(
        self, programs: tuple[tuple[str, ...], ...], infeed: tuple[str, ...], *values: Any
    ) -> tuple[Any, ...]:
        """Refused: programs side by side are for the evaluator."""
        self.refuse("interpreter.run_parallel")

    def everywhere(self, region: RegionCall, rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        """Refused: a local program has been partitioned already."""
        raise WeftError(
            "sdy.manual_computation in a local program", help="partition the program first"
        )

    def feed(self) -> str:
        """Refused: nothing is fed in."""
        self.refuse("stablehlo.infeed")

    def channel(self, key: tuple[object, ...]) -> list[tuple[Any, ...]]:
        """A list that nobody reads, for probes and calls of Python; messages are refused."""
        if key[0] in ("probe", "host call"):
            return []
        self.refuse("stablehlo.send or stablehlo.recv")


@dataclass
class PlainRegion:
    """A region that a reference may run, with the values it can see, on one device."""

    region: Region
    values: dict[Value, Any]
    device: OneDevice

    def __call__(self, *arrays: Any) -> tuple[Any, ...]:
        """Run once."""
        values = self.values | dict(zip(self.region.args, arrays, strict=bool(arrays)))
        for node in self.region.nodes:
            operands = [values[v] for v in node.operands]
            results = run_node(node, operands, values, self.device)
            values.update(zip(node.results, results, strict=True))
        return tuple([values[v] for v in self.region.results])

    def run(self, *values: Any) -> Generator[Any, Any, tuple[Any, ...]]:
        """Run once, for control flow."""
        yield from ()
        return self(*values)

    @property
    def combiners(self) -> tuple[str | None, ...]:
        """The op that each result is of two arguments, if it is one."""
        return self.region.body.combiners

    def each(self, *arrays: Array) -> tuple[Array, ...]:
        """Run a region on scalars for every element of arrays that have one shape."""
        shape = np.broadcast_shapes(*[a.shape for a in arrays])
        if is_elementwise(self.region):
            return tuple([np.broadcast_to(r, shape) for r in self(*arrays)])
        flat = [np.broadcast_to(a, shape).reshape(-1) for a in arrays]
        types = [v.type for v in self.region.results]
        outs = [np.empty(flat[0].size, t.dtype.numpy) for t in types if isinstance(t, TensorType)]
        for n in range(flat[0].size):
            for out, result in zip(outs, self(*(np.asarray(f[n]) for f in flat)), strict=True):
                out[n] = result
        return tuple(out.reshape(shape) for out in outs)


def is_elementwise(region: Region) -> bool:
    """Whether a region on scalars treats every element alike when it is run on arrays."""
    return all(node.op.elementwise and not node.regions for node in region.nodes)


def run_node(
    node: Node, operands: Sequence[Any], values: dict[Value, Any], device: OneDevice
) -> tuple[Any, ...]:
    """The results of a node on one device, by its reference."""
    op = node.op
    if op.collective:
        raise Unsupported(f"{op.name} inside a region that runs by itself", help=_MEETING)
    regions = tuple([PlainRegion(r, values, device) for r in node.regions])
    if op.control:
        return finished(op.reference(*operands, regions=regions, run=device))
    made = op.reference(*operands, regions=regions) if regions else op.reference(*operands)
    return made if isinstance(made, tuple) else (made,)


NOWHERE = (0, 0)
STAY = nullcontext()


def plain_region(site: Site, index: int = 0) -> PlainRegion:
    """A region of a node, for references that run it on whole stacks; it reads nothing outside."""
    return PlainRegion(site.node.regions[index], {}, OneDevice(site.module, NOWHERE))


# Device by device


def one_by_one(site: Site) -> HostKernel:
    """Run the reference for every distinct combination of operands, or for every device."""
    node, lead, outside = site.node, site.lead, captured(site.node)
    device = OneDevice(site.module, NOWHERE)
    calls_host = isinstance(node.op, CustomCall)
    each = isinstance(node.op, CustomCall) and called_by_each(node.op)
    layout = site.layout

    def run(*arrays: Any) -> tuple[Any, ...]:
        tensors = [a for a in arrays if isinstance(a, np.ndarray)]
        head = np.broadcast_shapes((1,) * lead, *[a.shape[:lead] for a in tensors])
        if each:
            rows = len(arrays[-1]) if layout.has_rows else 1
            head = layout.shape(layout.everything, rows)
            arrays = arrays[: len(node.operands)]
        outs: tuple[Any, ...] | None = None
        for index in np.ndindex(head):
            local = [_at(a, index) for a in arrays]
            values = dict(zip(outside, local[len(node.operands) :], strict=True))
            with calling() if calls_host else STAY:
                made = run_node(node, local[: len(node.operands)], values, device)
            outs = _store(outs, made, head, index)
        return outs if outs is not None else _empty(site, head)

    active = each and layout.has_rows
    return HostKernel(
        several(run, len(node.results)), sees_outside=bool(outside), reads_rows=active
    )


def _at(array: Any, index: tuple[int, ...]) -> Any:
    if isinstance(array, tuple):
        return tuple(_at(a, index) for a in array)
    if array is None:
        return None
    sizes = array.shape[: len(index)]
    return array[tuple([i if size > 1 else 0 for i, size in zip(index, sizes, strict=True)])]


def _store(
    outs: tuple[Any, ...] | None, made: Sequence[Any], head: tuple[int, ...], index: tuple[int, ...]
) -> tuple[Any, ...]:
    if outs is None:
        outs = tuple(
            None if m is None else np.empty(head + np.shape(m), np.asarray(m).dtype) for m in made
        )
    for out, result in zip(outs, made, strict=True):
        if out is not None:
            out[index] = result
    return outs


def _empty(site: Site, head: tuple[int, ...]) -> tuple[Any, ...]:
    """Results for no devices at all, which a part of a program may run on."""
    types = [v.type for v in site.node.results]
    return tuple(
        np.empty(head + t.sizes, t.dtype.numpy) if isinstance(t, TensorType) else None
        for t in types
    )


# Group by group


def rows_of(site: Site, active: Array | None) -> Array:
    """The place in the mesh of every row of a stack that is spelled out."""
    layout, atoms = site.layout, site.world.atoms
    kept = [np.arange(atoms.sizes[a]) * atoms.strides[a] for a in layout.kept]
    grids = [k.reshape([-1 if d == n else 1 for d in range(len(kept))]) for n, k in enumerate(kept)]
    base = sum(grids, np.zeros((1,) * len(kept), np.int64))
    if active is None:
        return np.asarray(base)
    first, rest = np.zeros_like(active), active
    for atom in reversed(layout.rows):
        rest, digit = np.divmod(rest, atoms.sizes[atom])
        first = first + digit * atoms.strides[atom]
    return np.asarray(first.reshape(-1, *(1,) * len(kept)) + base)


def by_group(site: Site) -> HostKernel:
    """Run the reference of a collective for one group of devices at a time."""
    node, world, lead = site.node, site.world, site.lead
    groups = world.groups(node.op)
    calls = tuple([plain_region(site, n) for n in range(len(node.regions))])
    extra = {"regions": calls} if calls else {}
    has_rows = site.layout.has_rows

    def run(*arrays: Any) -> tuple[Any, ...]:
        active = arrays[-1] if has_rows else None
        arrays = arrays[: len(node.operands)]
        places = rows_of(site, active)
        devices = world.devices()[places.reshape(-1)]
        row = {int(d): n for n, d in enumerate(devices)}
        flat = [_flat(a, places.shape, lead) for a in arrays]
        outs: tuple[Any, ...] | None = None
        present, alone = meeting(groups, row, node, world)
        for group in present:
            members = [tuple([a[row[d]] for a in flat]) for d in group]
            for d, made in zip(group, node.op.reference(*members, **extra), strict=True):
                outs = _store(outs, made, (len(devices),), (row[d],))
        for d in alone:
            made = node.op.alone(tuple([a[row[d]] for a in flat]))  # type: ignore[attr-defined]
            outs = _store(outs, made, (len(devices),), (row[d],))
        if outs is None:
            return _empty(site, places.shape)
        return tuple([o.reshape(places.shape + o.shape[1:]) for o in outs])

    return HostKernel(several(run, len(node.results)), reads_rows=has_rows)


def _flat(array: Array, head: tuple[int, ...], lead: int) -> Array:
    full = np.broadcast_to(array, head + array.shape[lead:])
    return full.reshape(math.prod(head), *array.shape[lead:])


def meeting(
    groups: Sequence[tuple[int, ...]], row: Mapping[int, int], node: Node, world: World
) -> tuple[list[tuple[int, ...]], list[int]]:
    """The groups that meet, and who is in none; an error if somebody of a group is not there."""
    found: list[tuple[int, ...]] = []
    seen: set[int] = set()
    for group in groups:
        present = [d for d in group if d in row]
        if present and len(present) < len(group):
            raise not_all_there(node, group, present)
        if present:
            found.append(tuple(group))
            seen.update(group)
    rest = [d for d in row if d not in seen]
    if rest and not hasattr(node.op, "alone"):
        raise WeftError(
            f"{node.op.name}: device {rest[0]} is in no group",
            help=f"the groups must name every one of the {world.count} devices",
        )
    return found, rest


def not_all_there(node: Node, group: Sequence[int], present: Sequence[int]) -> WeftError:
    """The error for a collective that part of a group never comes to."""
    gone = [d for d in group if d not in present]
    return WeftError(
        f"{node.op.name}: devices {list(present)[:8]} meet here, but devices {gone[:8]} of their "
        "group went another way",
        help="every device of a group must reach the same collective; "
        "on a real machine this program hangs",
    )
