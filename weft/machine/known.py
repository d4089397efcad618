"""The machines that Weft knows, as data.

Rates are those that good kernels reach, not data-sheet peaks. Latencies inside a node are NCCL's;
between nodes they are those of OpenXLA's speed-of-light model.
"""

from __future__ import annotations

import difflib

from weft.errors import WeftError
from weft.machine.machine import Links, Machine

_GIB = 1 << 30
_NVLINK = Links("nvlink", 8, bandwidth=300e9, latency=3e-6, launch=10e-6)
_INFINIBAND = Links("infiniband", None, bandwidth=25e9, latency=31e-6, launch=45e-6, prepare=6e-6)
_HOPPER = (
    ("f64", 55e12),
    ("f32", 300e12),
    ("f16", 750e12),
    ("bf16", 750e12),
    ("f8", 1270e12),
    ("i8", 1270e12),
)

HOST = Machine(
    "host",
    "virtual devices that share one computer's processor",
    memory=16 * _GIB,
    bandwidth=20e9,
    rates=(("f64", 40e9), ("f32", 80e9), ("f16", 40e9), ("bf16", 40e9), ("f8", 40e9), ("i8", 40e9)),
    vector=10e9,
    transcendental=1e9,
    launch=1e-6,
    links=(Links("memory", None, bandwidth=10e9, latency=0.0, launch=5e-6),),
    overlaps=False,
)
H100 = Machine(
    "h100",
    "nodes of 8 H100 SXM with NVLink",
    memory=79 * _GIB,
    bandwidth=3.0e12,
    rates=_HOPPER,
    vector=60e12,
    transcendental=8e12,
    launch=3e-6,
    links=(_NVLINK, _INFINIBAND),
)
H200 = Machine(
    "h200",
    "nodes of 8 H200 SXM with NVLink",
    memory=139 * _GIB,
    bandwidth=4.2e12,
    rates=_HOPPER,
    vector=60e12,
    transcendental=8e12,
    launch=3e-6,
    links=(_NVLINK, _INFINIBAND),
)

MACHINES = {known.name: known for known in (HOST, H100, H200)}


def machine(name: str) -> Machine:
    """The machine of that name."""
    if found := MACHINES.get(name.lower()):
        return found
    near = difflib.get_close_matches(name.lower(), MACHINES, n=1)
    hint = f"did you mean {near[0]}? " if near else ""
    raise WeftError(f"unknown machine {name!r}", help=f"{hint}known: {', '.join(MACHINES)}")
