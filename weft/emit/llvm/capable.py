"""Capabilities of this target: ops by their types, and whole kernels."""

from __future__ import annotations

from weft.emit.llvm.math.pointwise import CONSTANTS, EMIT, refuses
from weft.emit.llvm.product.product import HELD, supports
from weft.emit.llvm.schedule import refuses_schedule
from weft.emit.llvm.single.emit import refuses_single_node
from weft.emit.llvm.table import TABLE
from weft.ir.op import Op
from weft.ir.types import F32, DType
from weft.kernels.attention import Attention
from weft.kernels.flow import ControlFlow
from weft.kernels.group import AnyKernel
from weft.kernels.kernel import (
    Apply,
    Kernel,
    Pick,
    Reduce,
    Step,
    held_in,
    is_rounded,
    value_dtype,
)
from weft.kernels.single_node import SingleNode
from weft.ops.combiners import COMBINERS

_KNOWN: dict[tuple[type[Op], tuple[DType, ...], tuple[DType, ...]], str | None] = {}


def unsupported_op(
    op: Op, operand_dtypes: tuple[DType, ...], result_dtypes: tuple[DType, ...]
) -> str | None:
    """Why no kernel computes an op on these types, or None if one does."""
    if isinstance(op, CONSTANTS):
        return _refusal(op, operand_dtypes, result_dtypes)
    key = (type(op), operand_dtypes, result_dtypes)
    try:
        return _KNOWN[key]
    except KeyError:
        return _KNOWN.setdefault(key, _refusal(op, operand_dtypes, result_dtypes))


def _refusal(
    op: Op, operand_dtypes: tuple[DType, ...], result_dtypes: tuple[DType, ...]
) -> str | None:
    cell = TABLE.get(type(op))
    if cell is None or cell.how != "emitted":
        return cell.why if cell is not None else "the op is unknown"
    if cell.where == "product":
        held = held_in(result_dtypes[0])
        return None if held.name in HELD else f"no product is added up in {held}"
    if cell.where != "loops" or type(op) not in EMIT or not operand_dtypes:
        return None
    return (
        refuses(op, operand_dtypes, result_dtypes[0])
        if len(result_dtypes) == 1
        else "it has several results"
    )


def unsupported_kernel(kernel: AnyKernel) -> str | None:
    """Why a whole kernel cannot be emitted, or None if it can."""
    if isinstance(kernel, ControlFlow):
        return next((why for inner in kernel.kernels if (why := unsupported_kernel(inner))), None)
    if isinstance(kernel, SingleNode):
        return refuses_single_node(kernel)
    if (reason := refuses_schedule(kernel)) or isinstance(kernel, Attention):
        return reason
    if kernel.schedule.kind == "packed" and (reason := supports(kernel)):
        return reason
    reasons = (_refuses_step(step, kernel) for step in kernel.steps)
    return next((reason for reason in reasons if reason), None)


def _refuses_step(step: Step, kernel: Kernel) -> str | None:
    match step:
        case Apply(op=op, args=args, dtype=dtype):
            return refuses(op, tuple([value_dtype(kernel.steps[n]) for n in args]), dtype)
        case Reduce(how=how, dtype=dtype):
            # Sums that must be rounded to a narrow type are accumulated in f32.
            narrow = how in ("add", "mul") and is_rounded(
                dtype, excess_precision=kernel.excess_precision
            )
            held = F32 if narrow else dtype
            return refuses(COMBINERS[how], (held, held), held)
        case Pick(key=key) if value_dtype(kernel.steps[key]).is_complex:
            return "complex numbers have no order to pick by"
    return None
