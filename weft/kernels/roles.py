"""The roles of a kernel's factors in its contraction: batch, rows, columns, depth."""

from __future__ import annotations

import math
from collections.abc import Iterable

from weft.kernels.kernel import Contract, Kernel, Reduce, args_of
from weft.records import dataclass


@dataclass(frozen=True, slots=True)
class Roles:
    """result[b, m, n] = sum over k of lhs[b, m, k] * rhs[b, k, n], factors by role.

    Rows are factors of the left side only, columns of the right side only. Where a reduction of
    the result runs along some of the rows, the remaining rows are treated as batch; likewise for
    columns.
    """

    batch: tuple[int, ...]
    rows: tuple[int, ...]
    columns: tuple[int, ...]
    depth: tuple[int, ...]


def size_of(kernel: Kernel, factors: Iterable[int]) -> int:
    """The number of points of factors."""
    return math.prod([kernel.factors[f].size for f in factors])


def roles_of(kernel: Kernel) -> Roles:
    """The roles of a kernel's factors, by its first contraction."""
    at = next(n for n, step in enumerate(kernel.steps) if isinstance(step, Contract))
    contract = kernel.steps[at]
    assert isinstance(contract, Contract)
    lhs, rhs = kernel.spans[contract.lhs], kernel.spans[contract.rhs]
    # A factor of neither side, as of a later broadcast, is batch, too.
    free = [f for f in range(len(kernel.factors)) if f not in contract.over]
    rows = [f for f in free if f in lhs - rhs]
    columns = [f for f in free if f in rhs - lhs]
    for n in results_reduced(kernel):
        over = combined_along(kernel, n)
        rows, columns = (_along(role, over) for role in (rows, columns))
    batch = [f for f in free if f not in rows and f not in columns]
    return Roles(tuple(batch), tuple(rows), tuple(columns), tuple(contract.over))


def _along(role: list[int], over: set[int]) -> list[int]:
    """The factors of a role that a reduction runs along; all of them if none."""
    return [f for f in role if f in over] if over & {*role} else role


def results_reduced(kernel: Kernel) -> tuple[int, ...]:
    """The reductions in a kernel with a contraction; all of them follow it."""
    return tuple([n for n, step in enumerate(kernel.steps) if isinstance(step, Reduce)])


def combined_along(kernel: Kernel, number: int) -> set[int]:
    """The factors of more than one point that a reduction runs along."""
    step = kernel.steps[number]
    assert isinstance(step, Reduce)
    return {f for f in step.over if kernel.factors[f].size != 1}


def derived(kernel: Kernel, numbers: Iterable[int]) -> set[int]:
    """The steps that depend on any of these."""
    sources, dependent = {*numbers}, set[int]()
    for n, step in enumerate(kernel.steps):
        if any(arg in sources or arg in dependent for arg in args_of(step)):
            dependent.add(n)
    return dependent


def cannot_reduce(kernel: Kernel) -> str | None:
    """Why reductions of the contraction's result cannot run block by block; None if they can."""
    reduced, roles = results_reduced(kernel), roles_of(kernel)
    late = derived(kernel, reduced)
    if known := late.intersection(reduced):
        return f"step {min(known)} reduces what is reduced already"
    for n in reduced:
        over = combined_along(kernel, n)
        if over.isdisjoint((*roles.rows, *roles.columns)):
            return f"step {n} reduces along neither rows nor columns"
        if any(kernel.spans[other] & over for other in derived(kernel, [n])):
            return f"what step {n} reduces is needed again after it"
    contracts = [n for n, step in enumerate(kernel.steps) if isinstance(step, Contract)]
    again = (derived(kernel, contracts) | {*contracts}) - late - {*reduced}
    if any(not again.isdisjoint(args_of(kernel.steps[n])) for n in late):
        return "the product is needed again after it is reduced"
    return None
