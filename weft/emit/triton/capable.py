"""Capabilities of this target: ops by their types, and whole kernels."""

from __future__ import annotations

from weft.emit.triton import dtypes
from weft.emit.triton.collapse import collapsed
from weft.emit.triton.library.calls import refuses_library
from weft.emit.triton.parts.columns import crossed_sums
from weft.emit.triton.pointwise import elementwise_ops, refuses
from weft.emit.triton.ragged.emit import refuses_ragged
from weft.emit.triton.schedule import refuses_schedule
from weft.emit.triton.table import TABLE
from weft.ir.op import Op
from weft.ir.types import DType
from weft.kernels.group import AnyKernel
from weft.kernels.kernel import Apply, Contract, Kernel, Pick, Reduce, Step, Store, value_dtype
from weft.kernels.single_node import SingleNode
from weft.ops.combiners import COMBINERS
from weft.ops.ragged import RaggedDot


def unsupported_op(
    op: Op, operand_dtypes: tuple[DType, ...], result_dtypes: tuple[DType, ...]
) -> str | None:
    """Why no kernel computes an op on these types, or None if one does."""
    cell = TABLE.get(type(op))
    if cell is None or cell.how != "emitted":
        return cell.why if cell is not None else "the op is unknown"
    if reason := dtypes.refuses(*operand_dtypes, *result_dtypes):
        return reason
    if cell.where == "product":
        return (
            "complex or boolean"
            if result_dtypes[0].is_complex or result_dtypes[0].kind == "bool"
            else None
        )
    if cell.where == "alone" and op.elementwise:
        return "a function of PyTorch's computes it, by itself"
    if cell.where != "loops" or type(op) not in elementwise_ops() or not operand_dtypes:
        return None
    return (
        refuses(op, operand_dtypes, result_dtypes[0])
        if len(result_dtypes) == 1
        else "it has several results"
    )


def unsupported_kernel(kernel: AnyKernel) -> str | None:
    """Why a whole kernel cannot be emitted, or None if it can."""
    if isinstance(kernel, SingleNode) and isinstance(kernel.op, RaggedDot):
        return refuses_ragged(kernel)
    if not isinstance(kernel, Kernel):
        return refuses_library(kernel)
    if reason := dtypes.refuses(*[operand.dtype for operand in kernel.operands]):
        return reason
    if kernel.schedule.kind and (reason := refuses_schedule(kernel)):
        return reason
    small = collapsed(kernel)
    sums = [s for s in small.steps if isinstance(s, Reduce | Pick | Contract)]
    if len({frozenset(s.over) for s in sums}) > 1 and crossed_sums(small) is None:
        return "its reductions run along different factors"
    if len(sums) > 1 and any(isinstance(s, Contract) for s in sums):
        return "it reduces a product"
    reasons = (_refuses_step(step, kernel) for step in kernel.steps)
    return next((reason for reason in reasons if reason), None)


def _refuses_step(step: Step, kernel: Kernel) -> str | None:
    match step:
        case Apply(op=op, args=args, dtype=dtype):
            return refuses(op, tuple([value_dtype(kernel.steps[n]) for n in args]), dtype)
        case Reduce(how=how, dtype=dtype):
            return refuses(COMBINERS[how], (dtype, dtype), dtype)
        case Store() | Contract():
            return None
    return dtypes.refuses(step.dtype)
