"""Partial reductions of a contraction's result: one for each block, and a combining kernel.

The elements of a partial result and the order of combination depend on the blocking alone: results
are deterministic, independent of the threads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from weft.emit.llvm.loops.simplify import without_dead
from weft.emit.llvm.product.product import Product
from weft.kernels.interpret import compute_dtype
from weft.kernels.kernel import (
    Affine,
    Factor,
    Kernel,
    Load,
    Operand,
    Reduce,
    Schedule,
    Step,
    Store,
)
from weft.kernels.rewriting import map_affines, renumbered
from weft.kernels.roles import combined_along, derived
from weft.records import dataclass

ALIGNED = 64


@dataclass(frozen=True, slots=True)
class Parts:
    """The partial results of one reduction, in the workspace.

    `[batch, blocks of columns, rows]` of one along columns, `[batch, blocks of rows, columns]` of
    one along rows, `[batch, blocks of rows, blocks of columns]` of one along both.
    """

    number: int  # number of the reduction step
    along_rows: bool
    along_columns: bool
    operand: Operand
    at: int  # byte offset in the workspace


def parts_of(product: Product, blocks: tuple[int, int], begin: int) -> tuple[Parts, ...]:
    """The partial results of every reduction, given the block counts along rows and columns."""
    batch, rows, columns, _ = product.sizes
    parts: list[Parts] = []
    for n in product.reduced:
        over = combined_along(product.kernel, n)
        down, across = (not over.isdisjoint(role) for role in (product.rows, product.columns))
        if down:
            shape = (batch, blocks[0], blocks[1] if across else columns)
        else:
            shape = (batch, blocks[1], rows)
        operand = Operand(compute_dtype(product.dtype(n)), shape)
        parts.append(Parts(n, down, across, operand, begin))
        begin += -(-operand.nbytes // ALIGNED) * ALIGNED
    return tuple(parts)


def end_of(parts: Sequence[Parts], begin: int) -> int:
    """The end offset of partial results."""
    return max([p.at + -(-p.operand.nbytes // ALIGNED) * ALIGNED for p in parts], default=begin)


def combining_kernels(product: Product, parts: Sequence[Parts]) -> list[Kernel]:
    """Kernels that combine partial results (their last operands) and run the steps after."""
    left, kernels = list(parts), list[Kernel]()
    while left:
        together = _together(product.kernel, left)
        left = [p for p in left if p not in together]
        name = f"{product.kernel.name}_combine{len(kernels)}"
        kernels.append(_combining(product, parts, together, name))
    return kernels


def _together(kernel: Kernel, left: Sequence[Parts]) -> list[Parts]:
    """The first of some reductions, and those that the following steps need with it."""
    members = [left[0]]
    while True:
        late = derived(kernel, [p.number for p in members])
        more = [p for p in left if p not in members and late & derived(kernel, [p.number])]
        if not more:
            return members
        members += more


def _combining(
    product: Product, parts: Sequence[Parts], together: Sequence[Parts], name: str
) -> Kernel:
    """The kernel of reductions along the same factors: over blocks, then the rest."""
    kernel = product.kernel
    late = derived(kernel, [p.number for p in together])
    by_number = {p.number: n for n, p in enumerate(parts) if p in together}
    first = len(kernel.factors)
    batch = tuple([f for f in product.batch if f in combined_along(kernel, together[0].number)])
    # The two new factors count blocks along both dims of a partial result; unused ones have size 1.
    over = (first, first + 1, *batch)
    steps: list[Step] = []
    numbers: list[int] = []
    for n, step in enumerate(kernel.steps):
        step = map_affines(renumbered(step, numbers), _wider)
        if isinstance(step, Reduce) and n in by_number:
            one = parts[by_number[n]]
            operand = len(kernel.operands) + by_number[n]
            steps.append(Load(operand, _place(product, one), one.operand.dtype))
            step = replace(step, arg=len(steps) - 1, over=over)
        # The other stores were written by the blocks.
        if not isinstance(step, Store) or n in late:
            steps.append(step)
        numbers.append(len(steps) - 1)
    sizes = together[0].operand.shape[1:]
    blocks = [Factor(f"blocks{n}", size, "reduction") for n, size in enumerate(sizes)]
    combining = Kernel(
        name,
        (*kernel.factors, *_counted(together[0], blocks)),
        (*kernel.operands, *(p.operand for p in parts)),
        tuple(steps),
        _schedule(product, together[0], over),
        kernel.excess_precision,
    )
    return without_dead(combining)


def _wider(at: Affine) -> Affine:
    return Affine((*at.strides, 0, 0), at.offset)


def _counted(parts: Parts, blocks: list[Factor]) -> list[Factor]:
    """Block factors for reduced dims; kept dims have none."""
    if parts.along_rows and parts.along_columns:
        return blocks
    return [blocks[0], replace(blocks[1], size=1)]


def _place(product: Product, parts: Parts) -> Affine:
    """The index of a partial result."""
    strides = [0] * (len(product.kernel.factors) + 2)
    _, blocks, length = parts.operand.shape
    roles = [(product.batch, blocks * length)]
    strides[-2:] = length, 1
    if not (parts.along_rows and parts.along_columns):
        roles.append((product.columns if parts.along_rows else product.rows, 1))
    for role, step in roles:
        for f in reversed(role):
            strides[f] = step
            step *= product.kernel.factors[f].size
    return Affine(tuple(strides))


def _schedule(product: Product, parts: Parts, over: tuple[int, ...]) -> Schedule:
    outer = tuple([f for f in product.batch if f not in over])
    if parts.along_rows and parts.along_columns:
        return Schedule("rows", (*outer, *over), len(outer))
    kept = product.columns if parts.along_rows else product.rows
    return Schedule("columns", (*outer, *over, *kept), len(outer))
