"""Pallas kernels: lowered in interpret mode, refused otherwise."""

from __future__ import annotations

import sys
from typing import Any

from weft.capture.jax.calls import LoweringRule, location_of
from weft.errors import Unsupported
from weft.ir.location import Location

_PALLAS = "jax._src.pallas.pallas_call"


def has_pallas() -> bool:
    """Whether Pallas is imported."""
    return hasattr(sys.modules.get(_PALLAS), "pallas_call_p")


def pallas_rules() -> tuple[tuple[Any, LoweringRule], ...]:
    """The lowering of `pallas_call`, if Pallas is imported."""
    return ((sys.modules[_PALLAS].pallas_call_p, _pallas_call),) if has_pallas() else ()


def _pallas_call(ctx: Any, *operands: Any, interpret: Any, **params: Any) -> Any:
    """JAX's own lowering of a kernel in interpret mode."""
    if not interpret:
        name, loc = _kernel(params)
        raise Unsupported(
            f"pallas_call of {name}: Weft runs Pallas kernels in interpret mode only",
            help="pass interpret=True to pallas_call, or write the kernel with jax.numpy",
            loc=location_of(ctx.traceback) or loc,
        )
    lower = sys.modules[_PALLAS]._pallas_call_lowering
    return lower(ctx, *operands, interpret=interpret, **params)


def _kernel(params: dict[str, Any]) -> tuple[str, Location | None]:
    """The name of a kernel and the line of its definition, which JAX keeps in one string."""
    info = getattr(params.get("jaxpr"), "debug_info", None)
    name, _, place = str(getattr(info, "func_src_info", "")).partition(" at ")
    file, _, line = place.rpartition(":")
    loc = Location(f'"{file}":{line}:1') if file and line.isdigit() else None
    return name or "a kernel", loc
