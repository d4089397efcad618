"""The table of known custom calls: checks, annotations, linear algebra, callbacks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from weft.ir.check import require, same_type
from weft.ir.types import Types
from weft.ops.custom_calls import callbacks
from weft.ops.custom_calls import linalg as linalg_calls
from weft.ops.custom_calls.checks import expect_almost_equal, expect_close, expect_equal
from weft.ops.custom_calls.declaration import (
    CallResults,
    CallUse,
    Config,
    KnownCall,
    identity_types,
)


def _leave(site: CallUse, *values: Any) -> CallResults:
    return values


def _checking(check: Callable[..., None]) -> KnownCall:
    def compare(site: CallUse, *values: Any) -> CallResults:
        check(*values)
        return ()

    return KnownCall(_pair, compare)


def _pair(name: str, config: Config, operands: Types, results: Types) -> None:
    require(
        len(operands) == 2 and results == (),
        f"custom call {name!r} has {len(operands)} operands and {len(results)} results",
        "it takes what is to be checked and what is expected, and gives nothing",
    )
    same_type("stablehlo.custom_call", *operands)


def _sink(name: str, config: Config, operands: Types, results: Types) -> None:
    require(results == (), f"custom call {name!r} has {len(results)} results", "it gives nothing")


_ANNOTATION = KnownCall(identity_types, _leave)  # the identity

KNOWN_CALLS: dict[str, KnownCall] = {
    "check.expect_eq": _checking(expect_equal),
    "check.expect_eq_const": _checking(expect_equal),
    "check.expect_close": _checking(expect_close),
    "check.expect_close_const": _checking(expect_close),
    "check.expect_almost_eq": _checking(expect_almost_equal),
    "check.expect_almost_eq_const": _checking(expect_almost_equal),
    "Sharding": _ANNOTATION,
    "LayoutConstraint": _ANNOTATION,
    "annotate_device_placement": _ANNOTATION,
    "xla.sdy.FuncResultSharding": _ANNOTATION,
    "xla.sdy.PropagationBarrier": _ANNOTATION,
    "dce_sink": KnownCall(_sink, lambda site, *values: ()),  # its operands stay live
    "control_dep": KnownCall(_sink, lambda site, *values: ()),  # orders effects, has no value
    **linalg_calls.CALLS,
    **callbacks.CALLS,
}
