"""The reference interpreter: any module, on one device or many, in numpy.

Every device is a generator that runs its program and yields at collectives. A scheduler advances
them and executes each collective when its whole group has arrived; a deadlock is reported with the
lines that its devices wait at: on a real machine the program would hang.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import field
from typing import Any, TypeAlias

import numpy as np

from weft.errors import Unsupported, WeftError
from weft.ir.module import Function, Module, Node, Region, Value, is_elementwise
from weft.ir.op import Op, RegionCall
from weft.ir.types import Array, TensorType, Type, Types
from weft.ir.uses import last_uses
from weft.ir.write import node_text
from weft.mesh import Mesh
from weft.records import dataclass

Operands: TypeAlias = tuple[Any, ...]  # arrays; None for a token; tuples for tuples and futures
Rendezvous: TypeAlias = tuple[Node, Operands]  # a collective, and one device's operands
NodeWatch: TypeAlias = Callable[[Node, Operands], None]
# A device yields None while it waits for a receive.
DeviceSteps: TypeAlias = Generator[Rendezvous | None, Operands, Operands]

_MOST = 1 << 20  # devices, each a generator


def evaluate(
    module: Module,
    *arrays: Any,
    func: str = "main",
    devices: int | tuple[int, int] | None = None,
    watch: NodeWatch | None = None,
) -> tuple[Array, ...]:
    """Run a function of a module on arrays and return its results.

    With `devices` (a number of partitions, or replicas and partitions) the program runs on all of
    them at once, and every argument and result has a leading dim of that many devices. `watch`
    is called with every node and its results as they are computed.
    """
    if not isinstance(module, Module):
        raise WeftError(
            f"evaluate: {type(module).__name__} is not a module",
            help="weft.parse reads one from StableHLO: its text, bytes or path",
        )
    function = module.function(func)
    if len(arrays) != len(function.body.args):
        raise WeftError(
            f"{func} takes {len(function.body.args)} arguments, not {len(arrays)}",
            help="give one array for each argument",
            loc=function.loc,
        )
    shape = (1, 1) if devices is None else (1, devices) if isinstance(devices, int) else devices
    count = math.prod(shape)
    if not 1 <= count <= _MOST:
        raise WeftError(f"{count:,} devices", help=f"run on 1 to {_MOST:,} devices")
    stacked = [
        _argument(a, n, t, None if devices is None else count)
        for n, (a, t) in enumerate(zip(arrays, function.arg_types, strict=True))
    ]
    with np.errstate(all="ignore"):
        world = Evaluator(module, shape, watch=watch)
        starts = [world.start(d, function, tuple(a[d] for a in stacked)) for d in range(count)]
        results = world.finish(starts)
    if devices is None:
        return results[0]
    return tuple(np.stack([r[n] for r in results]) for n in range(len(function.body.results)))


def _argument(value: Any, index: int, type: Type, devices: int | None) -> Sequence[Any]:
    """An argument for each device, checked against its type."""
    if not isinstance(type, TensorType):
        return [None] * (devices or 1)
    array = np.asarray(value)
    weak = isinstance(value, int | float | bool | complex | list | tuple)
    if array.dtype.newbyteorder("=") != type.dtype.numpy and not weak:
        raise WeftError(
            f"argument {index} holds {array.dtype}, but the program takes {type}",
            help=f"convert it with .astype({type.dtype.numpy})",
        )
    expected = type.sizes if devices is None else (devices, *type.sizes)
    if array.shape != expected:
        raise WeftError(
            f"argument {index} has the shape {array.shape}, but the program takes {type}"
            + ("" if devices is None else f" on each of {devices} devices"),
            help=f"give an array of shape {expected}",
        )
    array = array.astype(type.dtype.numpy, copy=False)
    # Not list(array): elements of a stack of scalars must be arrays, too.
    return [array] if devices is None else [array[n, ...] for n in range(devices)]


@dataclass
class Evaluator:
    """The scheduler of the devices that run one program, with their channels."""

    module: Module
    shape: tuple[int, int]  # replicas, partitions
    infeed: list[str] = field(default_factory=list)
    channels: dict[tuple[object, ...], list[Operands]] = field(default_factory=dict)
    watch: NodeWatch | None = None  # called with every node and its results

    def start(self, device: int, function: Function, arguments: Operands) -> DeviceSteps:
        """A coroutine that runs this function on a device."""
        return _Device(self, divmod(device, self.shape[1])).function(function, arguments)

    def finish(self, devices: list[DeviceSteps]) -> list[Operands]:
        """Run all devices to completion and return the results of each."""
        results: list[Operands] = [()] * len(devices)
        waiting: dict[int, Rendezvous] = {}
        ready: dict[int, Operands | None] = dict.fromkeys(range(len(devices)))
        idle: set[int] = set()
        while ready:
            for device, answer in list(ready.items()):
                del ready[device]
                try:
                    # Runs until the device's next collective, or its end: between collectives
                    # devices are independent.
                    met = devices[device].send(answer)  # type: ignore[arg-type]
                except StopIteration as end:
                    results[device] = end.value
                    idle.clear()
                    continue
                except RecursionError:
                    raise Unsupported(
                        "calls or regions are nested too deeply",
                        help="does a function call itself?",
                    ) from None
                if met is None:  # it waits for a receive
                    ready[device] = ()
                    idle.add(device)
                else:
                    waiting[device] = met
                    idle.clear()
            for device, answer in self.meet(waiting).items():
                del waiting[device]
                ready[device] = answer
                idle.clear()
            # All that could go on wait for a receive, and nothing has happened since: no send will
            # come.
            if ready and idle == set(ready):
                raise self.stuck(waiting, idle)
        if waiting:
            raise self.stuck(waiting, idle)
        return results

    def meet(self, waiting: Mapping[int, Rendezvous]) -> dict[int, Operands]:
        """Execute every collective whose whole group has arrived."""
        answers: dict[int, Operands] = {}
        for device, (node, operands) in waiting.items():
            if device in answers:
                continue
            group = self.group(device, node)
            if group is None:
                answers[device] = node.op.alone(operands)  # type: ignore[attr-defined]
                continue
            if not all(member in waiting for member in group):
                continue
            nodes = [waiting[member][0] for member in group]
            # Ops are interned. Devices of a group that wait in different collectives never meet: a
            # deadlock.
            if any(other.op is not node.op for other in nodes):
                continue
            calls = tuple(_Device(self, (0, 0)).region(r, {}) for r in node.regions)
            members = [waiting[member][1] for member in group]
            extra = {"regions": calls} if calls else {}
            for member, result in zip(group, node.op.reference(*members, **extra), strict=True):
                answers[member] = result
        return answers

    def group(self, device: int, node: Node) -> tuple[int, ...] | None:
        """The group of a device in a collective; None if it is in none and the op allows that."""
        groups: tuple[tuple[int, ...], ...] = node.op.groups(  # type: ignore[attr-defined]
            *self.shape, self.module.meshes
        )
        for group in groups:
            if device in group:
                outside = [d for d in group if d >= math.prod(self.shape)]
                if outside:
                    raise WeftError(
                        f"{node.op.name}: device {outside[0]} is in a group, but only "
                        f"{math.prod(self.shape)} run",
                        help="run on more devices, or correct replica_groups",
                    ).at(node.loc, node_text(node))
                return group
        if hasattr(node.op, "alone"):
            return None
        raise WeftError(
            f"{node.op.name}: device {device} is in no group",
            help=f"replica_groups must name every one of the {math.prod(self.shape)} devices",
        ).at(node.loc, node_text(node))

    def stuck(self, waiting: Mapping[int, Rendezvous], idle: set[int]) -> WeftError:
        """The error for a deadlock."""
        first = min(waiting) if waiting else None
        places: dict[str, list[int]] = {}
        for device, (node, _) in waiting.items():
            places.setdefault(f"{node.op.name} at {node.loc.describe()}", []).append(device)
        if idle:
            places.setdefault("stablehlo.recv", []).extend(sorted(idle))
        waits = "; ".join(f"devices {sorted(d)} wait in {p}" for p, d in sorted(places.items()))
        error = WeftError(
            f"deadlock: {waits}",
            help="every device of a group must reach the same collective; "
            "on a real machine this program hangs",
        )
        return error if first is None else error.at(waiting[first][0].loc)


@dataclass
class _Device:
    """One device."""

    world: Evaluator
    device: tuple[int, int]

    @property
    def meshes(self) -> Mapping[str, Mesh]:
        """The meshes of the module, by name."""
        return self.world.module.meshes

    def function(self, function: Function, arguments: Operands) -> DeviceSteps:
        """Run a function."""
        return self.steps(function.body, dict(zip(function.body.args, arguments, strict=True)))

    def steps(self, region: Region, values: dict[Value, Any]) -> DeviceSteps:
        """Run the nodes of a region whose arguments are in `values`."""
        for node, dead in zip(region.nodes, last_uses(region), strict=True):
            operands = [values[v] for v in node.operands]
            try:
                if node.op.collective:
                    results = yield node, tuple(operands)
                elif node.op.control:
                    results = yield from node.op.reference(
                        *operands, regions=self.calls(node, values), run=self
                    )
                else:
                    results = run_plain(node, operands, self.calls(node, values))
            except WeftError as error:
                raise error.at(node.loc, node_text(node)) from None
            for value, result in zip(node.results, results, strict=True):
                values[value] = result
            if self.world.watch is not None:
                self.world.watch(node, results)
            for value in dead:
                # Memory goes back at the last use: reference runs of whole models must fit.
                values.pop(value, None)
        return tuple(values[v] for v in region.results)

    def calls(self, node: Node, values: dict[Value, Any]) -> tuple[_RegionCall, ...]:
        return tuple([self.region(r, values) for r in node.regions]) if node.regions else ()

    def region(self, region: Region, values: dict[Value, Any]) -> _RegionCall:
        """A region as a callable for references, with the values in scope."""
        return _RegionCall(self, region, values)

    def call(self, function: str, *values: Any) -> DeviceSteps:
        """Run a function of the module."""
        return self.function(self.world.module.function(function), values)

    def parallel(
        self, programs: tuple[tuple[str, ...], ...], infeed: tuple[str, ...], *values: Any
    ) -> Operands:
        """Run functions in parallel, by a scheduler of their own."""
        world = Evaluator(self.world.module, (len(programs), len(programs[0])), list(infeed))
        starts: list[DeviceSteps] = []
        position = 0
        for device, name in enumerate(name for row in programs for name in row):
            function = self.world.module.function(name)
            count = len(function.body.args)
            starts.append(world.start(device, function, values[position : position + count]))
            position += count
        return tuple(result for each in world.finish(starts) for result in each)

    def everywhere(self, region: RegionCall, rows: list[Operands]) -> list[Operands]:
        """Run a region on one device per row of arguments."""
        assert isinstance(region, _RegionCall)
        world = Evaluator(self.world.module, (1, len(rows)))
        return world.finish(
            [
                _RegionCall(_Device(world, (0, n)), region.region, region.values).run(*row)
                for n, row in enumerate(rows)
            ]
        )

    def feed(self) -> str:
        """The name of the function that computes the next infeed values."""
        if not self.world.infeed:
            raise Unsupported(
                "stablehlo.infeed: nothing feeds this program",
                help="pass the values as arguments; only interpreter.run_parallel has an infeed",
            )
        return self.world.infeed.pop(0)

    def channel(self, key: tuple[object, ...]) -> list[Operands]:
        """The queue of values sent under this key and not yet received."""
        return self.world.channels.setdefault(key, [])


@dataclass
class _RegionCall:
    """A region as a callable for references, with the values in scope."""

    device: _Device
    region: Region
    values: dict[Value, Any]

    def run(self, *arguments: Any) -> DeviceSteps:
        """Run once as a coroutine that yields at collectives."""
        # A copy of the scope: runs must not see each other's values.
        values = self.values | dict(zip(self.region.args, arguments, strict=True))
        return self.device.steps(self.region, values)

    def __call__(self, *arrays: Array) -> Operands:
        """Run once; collectives inside are an error."""
        steps = self.run(*arrays)
        try:
            next(steps)
        except StopIteration as end:
            results: Operands = end.value
            return results
        raise Unsupported(
            "a collective inside a region that runs once per element",
            help="move the collective out of the reduction, sort or scatter",
        )

    @property
    def combiners(self) -> tuple[str | None, ...]:
        """The combining op of each result, if the region is one."""
        return self.region.body.combiners

    def each(self, *arrays: Array) -> Operands:
        """Run a scalar region elementwise on arrays of one shape."""
        shape = np.broadcast_shapes(*(a.shape for a in arrays))
        if is_elementwise(self.region):
            results = self(*arrays)
            return tuple(np.broadcast_to(r, shape) for r in results)
        flat = [np.broadcast_to(a, shape).reshape(-1) for a in arrays]
        outs = [np.empty(flat[0].size, t.dtype.numpy) for t in _tensors(self.region.body.results)]
        for n in range(flat[0].size):
            for out, result in zip(outs, self(*(np.asarray(f[n]) for f in flat)), strict=True):
                out[n] = result
        return tuple(out.reshape(shape) for out in outs)


def _tensors(types: Types) -> list[TensorType]:
    return [t for t in types if isinstance(t, TensorType)]


def run_plain(node: Node, operands: list[Any], calls: tuple[Any, ...]) -> Operands:
    """The results of a node that is neither control flow nor a collective."""
    op: Op = node.op
    try:
        results = op.reference(*operands, regions=calls) if calls else op.reference(*operands)
    except MemoryError:
        raise Unsupported(
            f"{op.name}: the result does not fit into memory", help="use smaller sizes"
        ) from None
    return results if isinstance(results, tuple) else (results,)
