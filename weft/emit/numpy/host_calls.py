"""Calls of Python with global values, in one of the processes that run a program."""

from __future__ import annotations

from typing import Any

import numpy as np

from weft.emit.numpy.one_by_one import one_by_one
from weft.emit.numpy.peers import Peers, peers_of
from weft.errors import WeftError
from weft.executable.items import Site
from weft.executable.process import Exchange, Process
from weft.ir.types import TensorType
from weft.kernels.host import HostKernel
from weft.ops.custom_calls.callbacks import called_once

_CALLED, _FAILED = np.zeros(1, np.int8), np.ones(1, np.int8)


def is_shared_call(site: Site) -> bool:
    """Whether several processes run one call of a Python function."""
    stack_dims = site.stack_dims
    return bool(stack_dims.absent) and not stack_dims.has_rows and called_once(site.op)


def shared_call(site: Site, process: Process) -> HostKernel:
    """The process of the first device calls the function, and sends its results to all others.

    So do JAX's own devices: a line is printed once, not once for each process.
    """
    peers = peers_of(site, process, None)
    assert peers is not None, "there are other processes"
    first, plain = int(site.world.devices()[0]), one_by_one(site).run
    run = _called_elsewhere(site, peers, first) if peers.has(first) else _called(plain, site, peers)
    return HostKernel(run)


def _called(plain: Any, site: Site, peers: Peers) -> Any:
    """Call the function here, and send what it returned, or that it failed."""
    others = [peer for peer in peers.collective.devices if peer != peers.collective.here]
    holes = [np.zeros(shape, dtype) for shape, dtype in _kinds(site)]

    def run(*arrays: Any) -> Any:
        parts: list[Any] = [_FAILED, *holes]
        try:
            made = plain(*arrays)
            listed = made if isinstance(made, tuple) else (made,)
            parts = [_CALLED, *[a for a in listed if a is not None]]
        finally:
            if holes:  # a call without results is not waited for
                sent = dict.fromkeys(others, tuple(parts))
                peers.transport.wait(peers.transport.start(Exchange(peers.collective, sent, {})))
        return made

    return run


def _called_elsewhere(site: Site, peers: Peers, first: int) -> Any:
    """Receive the results."""
    caller, node, kinds = peers.peer(first), site.node, _kinds(site)
    awaited = {caller: [(_CALLED.shape, _CALLED.dtype), *kinds]}

    def run(*arrays: Any) -> Any:
        got: Any = ()
        if kinds:
            exchange = Exchange(peers.collective, {}, awaited)
            failed, *got = peers.transport.wait(peers.transport.start(exchange))[caller]
            if failed[0]:
                raise WeftError(
                    f"{node.op.name}: the Python function failed in the process of device {first}",
                    help="see the output of that process",
                    loc=node.loc,
                )
        left = iter(got)
        made = [next(left) if isinstance(v.type, TensorType) else None for v in node.results]
        return made[0] if len(made) == 1 else tuple(made)

    return run


def _kinds(site: Site) -> list[tuple[tuple[int, ...], np.dtype[Any]]]:
    """Shapes and types of the results, which all devices share; tokens are not sent."""
    types = [v.type for v in site.node.results]
    head = (1,) * site.lead
    return [(head + t.sizes, t.dtype.numpy) for t in types if isinstance(t, TensorType)]
