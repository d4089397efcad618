"""Capabilities of the kernel of ragged dots."""

from __future__ import annotations

from weft.emit.llvm.writer.storage import register_kind
from weft.kernels.nest.ragged import held_type, refuses_sums
from weft.kernels.single_node import SingleNode

_HELD = {"f32", "f64", "i32", "i64", "ui32", "ui64"}  # types that products are added up in


def refuses_ragged_dot(kernel: SingleNode) -> str | None:
    """Why this kernel is unsupported."""
    held = held_type(kernel)
    if held.name not in _HELD:
        return f"no product is added up in {held}"
    for side in kernel.operands[:2]:
        if register_kind(side.dtype) != register_kind(held) or side.dtype.kind != held.kind:
            return f"a product of {side.dtype} is added up in {held}"
    return refuses_sums(kernel)
