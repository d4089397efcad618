"""Dispatch of custom calls that have kernels, by their names."""

from __future__ import annotations

from collections.abc import Callable

from weft.emit.llvm.emitted import Emitted
from weft.emit.llvm.single import factorize
from weft.emit.llvm.spectral.eigh import eigh, refuses_eigh
from weft.emit.llvm.spectral.svd import refuses_svd, svd
from weft.kernels.single_node import SingleNode
from weft.ops.custom_calls.custom import CustomCall

# By name: the emitter, and why it does not take a kernel.
_Refusal = Callable[[SingleNode], str | None]
CALLS: dict[str, tuple[Callable[[SingleNode], Emitted], _Refusal]] = {
    **dict.fromkeys(factorize.CALLS, (factorize.factorize, factorize.refuses_factors)),
    "weft.eigh": (eigh, refuses_eigh),
    "weft.svd": (svd, refuses_svd),
}


def refuses_call(kernel: SingleNode) -> str | None:
    """Why a custom call is unsupported."""
    name = _name(kernel)
    return CALLS[name][1](kernel) if name in CALLS else "it is a call of something else"


def custom_call(kernel: SingleNode) -> Emitted:
    """The kernel of a known call."""
    return CALLS[_name(kernel)][0](kernel)


def _name(kernel: SingleNode) -> str:
    assert isinstance(kernel.op, CustomCall)
    return kernel.op.call_target_name
