"""The structure of a packed kernel: one contraction, its prologue and its epilogue.

    result[b, m, n] = sum over k of lhs[b, m, k] * rhs[b, k, n]

Each of b, m, n and k stands for any number of factors, linearized in row-major order. The steps
before `lhs` and `rhs` (prologue) run during packing, those after the sum (epilogue) on each
finished block. Reductions of the result have a partial result for each block; the steps after them
wait for all blocks.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

from weft.ir.types import DType
from weft.kernels.kernel import (
    Affine,
    Apply,
    Choose,
    Contract,
    Fill,
    Guard,
    Kernel,
    Load,
    Pick,
    Position,
    Reduce,
    Step,
    Store,
    args_of,
)
from weft.kernels.roles import cannot_reduce, derived, results_reduced, roles_of
from weft.ops.elementwise.convert import Convert
from weft.records import dataclass

_WIDE = 32  # rows and columns from which the layout of results matters
HELD = {"f32", "f64", "i32", "i64", "ui32", "ui64"}  # accumulator dtypes


@dataclass(frozen=True, slots=True)
class Product:
    """A kernel with one Contract, and its factors by role, outermost first."""

    kernel: Kernel
    at: int  # number of the Contract
    batch: tuple[int, ...]
    rows: tuple[int, ...]
    columns: tuple[int, ...]
    k: tuple[int, ...]  # reduced factors

    @property
    def contract(self) -> Contract:
        """The Contract step."""
        step = self.kernel.steps[self.at]
        assert isinstance(step, Contract)
        return step

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """The points of batch, rows, columns and K."""
        return (
            self.size(self.batch),
            self.size(self.rows),
            self.size(self.columns),
            self.size(self.k),
        )

    def dtype(self, step: int) -> DType:
        """The type of a step's value."""
        found = self.kernel.steps[step]
        assert not isinstance(found, Store)
        return found.dtype

    def stride(self, at: Affine, role: tuple[int, ...]) -> int | None:
        """The stride along a linearized role; None if it is not uniform."""
        if not role:
            return 1
        step = stride = at.strides[role[-1]]
        for f, inner in zip(reversed(role[:-1]), reversed(role[1:]), strict=True):
            step *= self.kernel.factors[inner].size
            if at.strides[f] != step:
                return None
        return stride

    def size(self, factors: Iterable[int]) -> int:
        """The number of points of factors."""
        return math.prod(self.kernel.factors[f].size for f in factors)

    @property
    def after(self) -> tuple[int, ...]:
        """The epilogue: the steps that depend on the sum, in order."""
        steps = self.kernel.steps
        reduced = [step.arg for n in self.reduced if isinstance(step := steps[n], Reduce)]
        found = required_steps(steps, [*_early_stores(self.kernel), *reduced], (self.at,))
        return tuple(n for n in found if n != self.at)

    @property
    def reduced(self) -> tuple[int, ...]:
        """The reductions of the result."""
        return results_reduced(self.kernel)

    @property
    def repeats(self) -> int:
        """The number of consecutive batch points with the same RHS."""
        count = len(self.batch)
        while count and self.batch[count - 1] not in self.kernel.spans[self.contract.rhs]:
            count -= 1
        return max(1, self.size(self.batch[count:]))


def required_steps(
    steps: tuple[Step, ...], roots: Iterable[int], known: Iterable[int]
) -> tuple[int, ...]:
    """The transitive inputs of roots, themselves included, up to known steps."""
    stop, reached, left = set(known), set[int](), list(roots)
    while left:
        n = left.pop()
        if n not in reached:
            reached.add(n)
            left += () if n in stop else args_of(steps[n])
    return tuple(sorted(reached))


def supports(kernel: Kernel) -> str | None:
    """Why a kernel cannot run as a packed contraction, or None if it can."""
    contracts = [n for n, s in enumerate(kernel.steps) if isinstance(s, Contract)]
    if len(contracts) != 1:
        return f"a packed kernel has one Contract, this one has {len(contracts)}"
    at = contracts[0]
    contract = kernel.steps[at]
    assert isinstance(contract, Contract)
    if contract.held.name not in HELD:
        return f"no product is added up in {contract.held}"
    before = required_steps(kernel.steps, args_of(contract), ())
    for n in before:
        if isinstance(kernel.steps[n], Reduce | Pick | Store):
            return f"step {n}, a {type(kernel.steps[n]).__name__}, comes before the product"
    for n in sorted(set(range(len(kernel.steps))) - set(before)):
        if isinstance(kernel.steps[n], Pick):
            return f"step {n}, a Pick, comes after the product"
    if reason := cannot_reduce(kernel):
        return reason
    summed = set(contract.over)
    for n, step in enumerate(kernel.steps):
        if isinstance(step, Store) and kernel.spans[n] & summed:
            return f"step {n} stores what the product sums over"
    return None


def _early_stores(kernel: Kernel) -> list[int]:
    """The stores that do not wait for a reduction of the result."""
    late = derived(kernel, results_reduced(kernel))
    return [n for n, s in enumerate(kernel.steps) if isinstance(s, Store) and n not in late]


def find_product(kernel: Kernel) -> Product:
    """The contraction of a kernel that `supports` accepts, with the fewest factors."""
    kernel = _with_swapped_sides(kernel)
    roles = _roles(kernel)
    small = {f for f, factor in enumerate(kernel.factors) if factor.size == 1}
    factors = [[f for f in _ordered(kernel, role) if f not in small] for role in roles]
    for role in factors:
        kernel = _merged(kernel, role)
    kernel = _with_narrow_sides(kernel)
    at = next(n for n, step in enumerate(kernel.steps) if isinstance(step, Contract))
    batch, rows, columns, k = (tuple(role) for role in factors)
    return Product(kernel, at, batch, rows, columns, k)


def _with_swapped_sides(kernel: Kernel) -> Kernel:
    """lhs * rhs -> rhs * lhs, when all results are contiguous along the LHS's rows.

    Also for few columns, when the LHS itself is: vectors of it need not be transposed.
    """
    _, rows, columns, _ = _roles(kernel)
    at = next(n for n, step in enumerate(kernel.steps) if isinstance(step, Contract))
    contract = kernel.steps[at]
    assert isinstance(contract, Contract)
    lanes = [f for f in rows if kernel.factors[f].size > 1]
    stores = [s.at for n in _early_stores(kernel) if isinstance(s := kernel.steps[n], Store)]
    count, width = (math.prod(kernel.factors[f].size for f in role) for role in (rows, columns))
    near = [
        s.at
        for n in required_steps(kernel.steps, [contract.lhs], ())
        if isinstance(s := kernel.steps[n], Load)
    ]
    along = any(at.strides[f] == 1 for at in near for f in lanes)
    worth = (count >= _WIDE and (along or width >= _WIDE)) or (along and width == 1)
    aside = bool(stores) and all(any(store.strides[f] == 1 for f in lanes) for store in stores)
    if not (worth and aside and contract.held.is_float):
        return kernel
    # Factors commute exactly: nothing but the blocking changes.
    swapped = replace(contract, lhs=contract.rhs, rhs=contract.lhs)
    return replace(kernel, steps=(*kernel.steps[:at], swapped, *kernel.steps[at + 1 :]))


def _with_narrow_sides(kernel: Kernel) -> Kernel:
    """The kernel with unwidened sides: the contraction widens them itself."""
    steps = list(kernel.steps)
    for n, step in enumerate(steps):
        if isinstance(step, Contract):
            lhs, rhs = (_narrow(kernel, side, step.held) for side in (step.lhs, step.rhs))
            steps[n] = replace(step, lhs=lhs, rhs=rhs)
    return replace(kernel, steps=tuple(steps))


def _narrow(kernel: Kernel, side: int, held: DType) -> int:
    """convert(x) -> x, when x is a narrower type of the same kind; the accumulator is kept."""
    step = kernel.steps[side]
    if not (isinstance(step, Apply) and isinstance(step.op, Convert) and step.dtype is held):
        return side
    (arg,) = step.args
    source = kernel.steps[arg]
    assert not isinstance(source, Store)
    exact = held.is_float if source.dtype.is_float else held.is_integer and source.dtype.is_integer
    # Widening is exact wherever it happens: in loads, while packing, or inside an instruction that
    # takes the narrow type, which is chosen by the types seen here.
    return arg if exact and source.dtype.bits < held.bits else side


def _roles(kernel: Kernel) -> tuple[list[int], list[int], list[int], list[int]]:
    """Factors by role; of the batch, first those that the RHS varies along."""
    found = roles_of(kernel)
    return [*found.batch], [*found.rows], [*found.columns], [*found.depth]


def _ordered(kernel: Kernel, role: list[int]) -> list[int]:
    """Factors in the memory order of the results (or, for reduced ones, the operands)."""
    contract = next(step for step in kernel.steps if isinstance(step, Contract))
    first: list[int] = []
    if set(role) <= set(contract.over):
        sides = (contract.rhs, contract.lhs)
        loads = [n for side in sides for n in required_steps(kernel.steps, [side], ())]
        places = [s.at for n in loads if isinstance(s := kernel.steps[n], Load)]
    else:
        places = [step.at for step in kernel.steps if isinstance(step, Store)]
        if set(role) <= set(roles_of(kernel).batch):
            # Factors that the RHS does not vary along are innermost: consecutive batch points then
            # share one packed RHS (`Product.repeats`).
            first = [f for f in role if f in kernel.spans[contract.rhs]]

    def key(f: int) -> list[int]:
        return [f not in first, *(-abs(place.strides[f]) for place in places), f]

    return sorted(role, key=key)


def _merged(kernel: Kernel, role: list[int]) -> Kernel:
    """Merge neighbours of a role wherever every access treats them as one; edits role."""
    n = 0
    while n + 1 < len(role):
        outer, inner = role[n], role[n + 1]
        size = kernel.factors[inner].size
        # A reduction of the result along only one of the two needs them apart.
        apart = any((outer in over) != (inner in over) for over in _overs(kernel))
        even = all(p.strides[outer] == p.strides[inner] * size for p in places(kernel))
        if even and not apart:
            kernel = _merge_factors(kernel, outer, inner)
            del role[n]
        else:
            n += 1
    return kernel


def _overs(kernel: Kernel) -> list[tuple[int, ...]]:
    """The reduced factors of each reduction of the result."""
    steps = kernel.steps
    return [step.over for n in results_reduced(kernel) if isinstance(step := steps[n], Reduce)]


def _merge_factors(kernel: Kernel, outer: int, inner: int) -> Kernel:
    """The kernel with two factors merged; the other one gets size 1 and no strides."""
    factors = list(kernel.factors)
    size = factors[outer].size * factors[inner].size
    factors[inner] = replace(factors[inner], size=size)
    # Not removed: strides and `over` refer to factors by number.
    factors[outer] = replace(factors[outer], size=1)
    still = tuple(_without(step, outer) for step in kernel.steps)
    return replace(kernel, factors=tuple(factors), steps=still)


def places(kernel: Kernel) -> list[Affine]:
    """Every affine index of a kernel."""
    affines: list[Affine] = []
    for step in kernel.steps:
        if isinstance(step, Load | Position | Store):
            affines.append(step.at)
        if isinstance(step, Load | Choose | Store):
            affines += [guard.index for guard in step.guards]
    return affines


def _without(step: Step, factor: int) -> Step:
    """A step without a factor in its indices."""

    def affine(a: Affine) -> Affine:
        strides = list(a.strides)
        strides[factor] = 0
        return replace(a, strides=tuple(strides))

    def guarded(guards: tuple[Guard, ...]) -> tuple[Guard, ...]:
        return tuple(replace(g, index=affine(g.index)) for g in guards)

    match step:
        case Load() | Store():
            return replace(step, at=affine(step.at), guards=guarded(step.guards))
        case Position():
            return replace(step, at=affine(step.at))
        case Choose():
            return replace(step, guards=guarded(step.guards))
        case Contract() | Reduce() | Pick():
            return replace(step, over=tuple(f for f in step.over if f != factor))
        case Apply() | Fill():
            return step
