"""The dims of a ragged dot by role, with strides in its operands, sizes of groups and result."""

from __future__ import annotations

import math

from weft.ir.types import DType
from weft.kernels.kernel import held_in
from weft.kernels.nest.loop_dims import LoopDim, merged
from weft.kernels.single_node import SingleNode, strides
from weft.ops.ragged import Mode, RaggedDot

LHS, RHS, SIZES, OUT = range(4)  # the buffers


class RaggedRoles:
    """The dims of a ragged dot: points of `outer` have a product of one matrix for each group."""

    def __init__(self, kernel: SingleNode) -> None:
        op, lead = kernel.op, kernel.lead
        assert isinstance(op, RaggedDot)
        dims = op.ragged_dot_dimension_numbers
        self.mode: Mode = dims.mode
        shapes = [operand.shape for operand in kernel.operands]
        apart = [strides(shape) for shape in shapes]
        lhs_rank, rhs_rank = len(shapes[LHS]) - lead, len(shapes[RHS]) - lead
        varies = len(shapes[SIZES]) - lead > 1 and self.mode != "batch"
        prefix = dims.prefix(lhs_rank) if varies else ()

        def along(a: int | None, b: int | None, out: int | None) -> LoopDim:
            """A dim of the LHS and the RHS, and of the result."""
            near = 0 if a not in prefix or a is None else apart[SIZES][lead + prefix.index(a)]
            steps = (
                0 if a is None else apart[LHS][lead + a],
                0 if b is None else apart[RHS][lead + b],
                near,
                0 if out is None else apart[OUT][lead + out],
            )
            size = shapes[LHS][lead + a] if a is not None else shapes[RHS][lead + (b or 0)]
            return LoopDim(size, steps)

        at = 1 if self.mode == "contracting" else 0
        devices = zip(kernel.devices, zip(*[s[:lead] for s in apart], strict=True), strict=True)
        outer = [LoopDim(size, steps) for size, steps in devices]
        rows: list[LoopDim] = []
        columns: list[LoopDim] = []
        for a, b in dims.dot.batch:
            outer.append(along(a, b, at))
            at += 1
        for a in dims.dot.lhs_free(lhs_rank):
            (outer if self.mode == "free" and a != dims.ragged else rows).append(along(a, None, at))
            at += 1
        for b in dims.rhs_free(rhs_rank):
            columns.append(along(None, b, at))
            at += 1
        summed = [along(a, b, None) for a, b in dims.dot.contract]
        if self.mode == "contracting":  # their groups begin and end along the summed dim
            summed = [LoopDim(dim.size, (*dim.steps[:SIZES], 0, 0)) for dim in summed]
        self.summed = merged(summed)
        *more_rows, self.rows = merged(rows) or [LoopDim(1, (0, 0, 0, 0))]
        *more_columns, self.columns = merged(columns) or [LoopDim(1, (0, 1, 0, 1))]
        self.outer = merged([*outer, *more_rows, *more_columns])
        self.k = self.summed[0] if self.summed else LoopDim(1, (1, 0, 0, 0))
        if self.mode == "free":  # rows begin and end with groups: their dim has no place in sizes
            self.rows = LoopDim(self.rows.size, (*self.rows.steps[:SIZES], 0, self.rows.steps[OUT]))
        self.groups = shapes[SIZES][-1]
        group = dims.rhs_group_dimensions
        self.group_steps = (
            apart[RHS][lead + group[0]] if group else 0,
            apart[SIZES][-1],
            apart[OUT][lead] if self.mode == "contracting" else 0,
        )
        self.empty = math.prod(dim.size for dim in summed) == 0


def held_type(kernel: SingleNode) -> DType:
    """The type that products are added up in."""
    return held_in(kernel.outputs[0].dtype)


def refuses_sums(kernel: SingleNode) -> str | None:
    """Why the sums of a ragged dot are not along one dim."""
    op = kernel.op
    assert isinstance(op, RaggedDot)
    dims = op.ragged_dot_dimension_numbers
    if dims.mode == "contracting" and len(dims.lhs_contracting_dimensions) > 1:
        return "it sums over more dims than the ragged one"
    if kernel.outputs[0].size and len(RaggedRoles(kernel).summed) > 1:
        return "its summed dims are not one in both operands"
    return None
