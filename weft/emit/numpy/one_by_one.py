"""The fallback: ops without a stacked kernel run device by device, by their references."""

from __future__ import annotations

import sys
from collections.abc import Generator, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, NoReturn

import numpy as np

from weft.array.stream import calling
from weft.errors import Unsupported, WeftError
from weft.executable.items import Site
from weft.ir.module import Module, Node, Region, Value, is_elementwise
from weft.ir.op import RegionCall
from weft.ir.types import Array, TensorType
from weft.ir.uses import free_variables
from weft.kernels.host import HostKernel, single_result_convention
from weft.mesh import Mesh
from weft.ops.custom_calls.callbacks import called_by_each, direct_call
from weft.records import dataclass

_MEETING = "move the collective out of the reduction, sort or scatter"


def finished(steps: Generator[Any, Any, tuple[Any, ...]]) -> tuple[Any, ...]:
    """Run a reference that must not block on other devices."""
    try:
        next(steps)
    except StopIteration as end:
        results: tuple[Any, ...] = end.value
        return results
    raise Unsupported("a collective inside a region that runs device by device", help=_MEETING)


@dataclass
class OneDevice:
    """The device context of control ops."""

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
        """Raise: not available in lockstep."""
        raise Unsupported(
            f"{what} in a program that runs in lockstep",
            help="pass values as arguments and results, or use collectives",
        )

    def parallel(
        self, programs: tuple[tuple[str, ...], ...], infeed: tuple[str, ...], *values: Any
    ) -> tuple[Any, ...]:
        """Unsupported: MPMD programs run in the evaluator only."""
        self.refuse("interpreter.run_parallel")

    def everywhere(self, region: RegionCall, rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        """Unsupported: a local program is already partitioned."""
        raise WeftError(
            "sdy.manual_computation in a local program", help="partition the program first"
        )

    def feed(self) -> str:
        """Unsupported: there is no infeed."""
        self.refuse("stablehlo.infeed")

    def channel(self, key: tuple[object, ...]) -> list[tuple[Any, ...]]:
        """A discarded list for probes and callbacks; messages are unsupported."""
        if key[0] in ("probe", "host call"):
            return []
        self.refuse("stablehlo.send or stablehlo.recv")


@dataclass
class PlainRegion:
    """A region with its captured values, on one device."""

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
        """The op of each result that is a binary combiner of two arguments."""
        return self.region.body.combiners

    def each(self, *arrays: Array) -> tuple[Array, ...]:
        """Run a scalar region for every element of arrays of one shape."""
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


def run_node(
    node: Node, operands: Sequence[Any], values: dict[Value, Any], device: OneDevice
) -> tuple[Any, ...]:
    """Run a node on one device, by its reference."""
    op = node.op
    if op.collective:
        raise Unsupported(f"{op.name} inside a region that runs device by device", help=_MEETING)
    regions = tuple([PlainRegion(r, values, device) for r in node.regions])
    if op.control:
        return finished(op.reference(*operands, regions=regions, run=device))
    made = op.reference(*operands, regions=regions) if regions else op.reference(*operands)
    return made if isinstance(made, tuple) else (made,)


NOWHERE = (0, 0)
STAY = nullcontext()


def plain_region(site: Site, index: int = 0) -> PlainRegion:
    """A region of a node, for references on whole stacks; it captures nothing."""
    return PlainRegion(site.node.regions[index], {}, OneDevice(site.module, NOWHERE))


# Device by device


def one_by_one(site: Site) -> HostKernel:
    """Run the reference for every distinct combination of operands, or for every device."""
    from weft.ops.custom_calls.custom import CustomCall  # imported here: collectives need no LAPACK

    node, lead, outside = site.node, site.lead, free_variables(site.node)
    device = OneDevice(site.module, NOWHERE)
    calls_host = isinstance(node.op, CustomCall)
    each = isinstance(node.op, CustomCall) and called_by_each(node.op)
    stack_dims = site.stack_dims
    ones, first = (1,) * lead, (0,) * lead
    types = tuple([v.type for v in node.results])
    call = direct_call(node.op, types) if isinstance(node.op, CustomCall) and not outside else None

    def is_one(array: Any) -> bool:
        if isinstance(array, np.ndarray):
            return bool(array.shape[:lead] == ones)
        return array is None  # a token

    def run_once(*arrays: Any) -> tuple[Any, ...]:
        """All operands are equal on all devices."""
        local = [None if a is None else a[first] for a in arrays]
        with calling() if calls_host else STAY:
            if call is not None:
                made = call(*local)
            else:
                values = dict(zip(outside, local[len(node.operands) :], strict=True))
                made = run_node(node, local[: len(node.operands)], values, device)
        return tuple([None if m is None else owned(m).reshape(ones + np.shape(m)) for m in made])

    def run(*arrays: Any) -> tuple[Any, ...]:
        if not each and all(map(is_one, arrays)):
            return run_once(*arrays)
        tensors = [a for a in arrays if isinstance(a, np.ndarray)]
        head = np.broadcast_shapes((1,) * lead, *[a.shape[:lead] for a in tensors])
        if each:  # once a device, even where all operands are equal
            rows = len(arrays[-1]) if stack_dims.has_rows else 1
            head = stack_dims.shape(stack_dims.everything, rows)
            arrays = arrays[: len(node.operands)]
        outs: tuple[Any, ...] | None = None
        for index in np.ndindex(head):
            local = [_at(a, index) for a in arrays]
            values = dict(zip(outside, local[len(node.operands) :], strict=True))
            with calling() if calls_host else STAY:
                made = run_node(node, local[: len(node.operands)], values, device)
            outs = store(outs, made, head, index)
        return outs if outs is not None else empty(site, head)

    active = each and stack_dims.has_rows
    return HostKernel(
        single_result_convention(run, len(node.results)),
        sees_outside=bool(outside),
        reads_rows=active,
    )


_REFERENCES = 4  # to an array of a tuple, in `owned`: the tuple's, two variables', the call's


def owned(value: Any) -> Array:
    """An array that nothing else refers to: a result may be an operand, or kept by a function."""
    is_sole = isinstance(value, np.ndarray) and value.flags.owndata
    if is_sole and value.flags.c_contiguous and sys.getrefcount(value) <= _REFERENCES:
        return np.asarray(value)
    return np.array(value)


def _at(array: Any, index: tuple[int, ...]) -> Any:
    if isinstance(array, tuple):
        return tuple(_at(a, index) for a in array)
    if array is None:
        return None
    # Size 1 stands for every device along a dim that the value does not vary along.
    sizes = array.shape[: len(index)]
    return array[tuple([i if size > 1 else 0 for i, size in zip(index, sizes, strict=True)])]


def store(
    outs: tuple[Any, ...] | None,
    results: Sequence[Any],
    head: tuple[int, ...],
    index: tuple[int, ...],
) -> tuple[Any, ...]:
    """Write results at an index, allocating them first."""
    if outs is None:
        outs = tuple(
            None if m is None else np.empty(head + np.shape(m), np.asarray(m).dtype)
            for m in results
        )
    for out, result in zip(outs, results, strict=True):
        if out is not None:
            out[index] = result
    return outs


def empty(site: Site, head: tuple[int, ...]) -> tuple[Any, ...]:
    """Results for zero devices, in divergent code without active rows."""
    types = [v.type for v in site.node.results]
    return tuple(
        np.empty(head + t.sizes, t.dtype.numpy) if isinstance(t, TensorType) else None
        for t in types
    )
