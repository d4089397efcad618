"""The table of host kernels: one entry for every op; `kinds` classifies them."""

from __future__ import annotations

from typing import Literal

from weft.emit.numpy import collective, contract, index, pointwise, reduce, shape
from weft.emit.numpy.one_by_one import one_by_one
from weft.errors import Unsupported
from weft.executable.items import Site
from weft.ir.op import Op
from weft.kernels.host import HostKernel, Maker
from weft.ops import OPS
from weft.ops.control import (
    AfterAll,
    AsyncDone,
    AsyncStart,
    Call,
    Case,
    Composite,
    CreateToken,
    GetTupleElement,
    If,
    RunParallel,
    Tuple,
    While,
)
from weft.ops.custom_calls.checks import ExpectSerializedEq
from weft.ops.custom_calls.custom import Infeed, Recv, Send
from weft.ops.distributed.async_pairs import VariadicAsyncDone, VariadicAsyncStart
from weft.ops.distributed.sharding import ManualComputation, NamedComputation, ShardingGroup

HostSupport = Literal["stacked", "control", "one by one", "refused"]

KERNELS: dict[type[Op], Maker] = {
    **pointwise.KERNELS,
    **shape.KERNELS,
    **contract.KERNELS,
    **reduce.KERNELS,
    **index.KERNELS,
}
# Handled by the compiler itself.
CONTROL: frozenset[type[Op]] = frozenset(
    {
        *(While, If, Case, Call, Composite, NamedComputation),
        *(AsyncStart, AsyncDone, VariadicAsyncStart, VariadicAsyncDone, Tuple, GetTupleElement),
        *(AfterAll, CreateToken, ShardingGroup),
    }
)
REFUSED: dict[type[Op], str] = {
    ManualComputation: "partition the program first: its body becomes part of the local program",
    RunParallel: "it is for the evaluator's tests; run the functions by themselves",
    ExpectSerializedEq: "it reads what the evaluator's probes have seen; use the evaluator",
    Infeed: "pass the values as arguments",
    Send: "use collective_permute",
    Recv: "use collective_permute",
}


def kernel_of(site: Site) -> HostKernel:
    """The kernel of a node in its context, unless it is a collective."""
    op = type(site.op)
    if op in REFUSED:
        raise Unsupported(f"{site.op.name} does not run in lockstep", help=REFUSED[op])
    return KERNELS.get(op, one_by_one)(site)


def kinds() -> dict[str, HostSupport]:
    """For every op, whether it has a stacked kernel or runs device by device."""
    return {op.name: kind_of(op) for op in OPS}


def kind_of(op: type[Op]) -> HostSupport:
    """The kind of an op's kernel."""
    if op in KERNELS or op in collective.KERNELS:
        return "stacked"
    if op in CONTROL:
        return "control"
    return "refused" if op in REFUSED else "one by one"
