"""Products whose operands the library does not take as they are: packed into scratch first.

A library takes one stride for each of rows, columns and depth. Several dims of unlike strides
(heads of a transposed activation) have no common one. The copy moves each element once; the
product reads it many times.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from weft.emit.triton.library.places import dense_index
from weft.emit.triton.library.product import PACKED_TYPES, is_worth_packing, library_product
from weft.emit.triton.product import contract_of
from weft.emit.triton.rebuild import StepList
from weft.kernels.kernel import Affine, Contract, Kernel, Load, Operand, Store
from weft.kernels.roles import roles_of, size_of
from weft.records import dataclass


@dataclass(frozen=True, slots=True)
class PackedProduct:
    """Copies of operands with their operand numbers, and the kernel that reads the copies."""

    copies: tuple[tuple[Kernel, tuple[int, ...]], ...]
    product: Kernel  # the copies are its last operands
    scratch: tuple[Operand, ...]


def packed_product(kernel: Kernel) -> PackedProduct | None:
    """The product of a kernel of collapsed loops on packed operands, if the library takes these."""
    at = contract_of(kernel)
    contract = kernel.steps[at]
    assert isinstance(contract, Contract)
    if not is_worth_packing(kernel, roles_of(kernel)) or contract.lhs == contract.rhs:
        return None
    # One copy is tried before two; weights, on the right, are usually the smaller side.
    for sides in ((contract.rhs,), (contract.lhs,), (contract.lhs, contract.rhs)):
        made = _packed(kernel, contract, sides)
        if made is not None and library_product(made.product) is not None:
            return made
    return None


def _packed(kernel: Kernel, contract: Contract, sides: Sequence[int]) -> PackedProduct | None:
    roles, steps = roles_of(kernel), [*kernel.steps]
    scratch: list[Operand] = []
    copies: list[tuple[Kernel, tuple[int, ...]]] = []
    for side in sides:
        load = kernel.steps[side]
        if not isinstance(load, Load) or load.guards or load.shifts:
            return None
        if load.dtype.name not in PACKED_TYPES:
            return None
        free = roles.rows if side == contract.lhs else roles.columns
        order = (free, roles.depth) if side == contract.lhs else (roles.depth, free)
        # A batch may share a side.
        factors = [f for f in (*roles.batch, *order[0], *order[1]) if load.at.strides[f]]
        place, number = dense_index(kernel, factors), len(kernel.operands) + len(scratch)
        operand = Operand(load.dtype, (size_of(kernel, factors),), True)
        copies.append(_copy(kernel, side, place, operand, number))
        scratch.append(operand)
        steps[side] = replace(load, operand=number, at=place)
    operands = (*kernel.operands, *[replace(o, output=False) for o in scratch])
    product = replace(kernel, operands=operands, steps=tuple(steps))
    return PackedProduct(tuple(copies), product, tuple(scratch))


def _copy(
    kernel: Kernel, side: int, place: Affine, operand: Operand, number: int
) -> tuple[Kernel, tuple[int, ...]]:
    """The kernel that copies a side to scratch, and its operand numbers."""
    steps = StepList()
    steps.keep(side, kernel.steps[side])
    steps.add(Store(len(kernel.operands), place, 0))
    factors = [
        replace(f, size=f.size if place.strides[n] else 1) for n, f in enumerate(kernel.factors)
    ]
    copy, numbers = steps.kernel(
        kernel, f"{kernel.name}_packed", factors, (*kernel.operands, operand)
    )
    last = len(kernel.operands)
    return copy, tuple([number if n == last else n for n in numbers])
