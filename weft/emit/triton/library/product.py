"""Products by PyTorch's library, cuBLAS on NVIDIA GPUs: on strided views of the operands.

Steps before a product and after it are kernels of their own, on scratch. A product of f32 is exact,
or of TF32 operands where the program allows it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from weft.emit.triton.collapse import reduced_factors
from weft.emit.triton.product import contract_of, refuses_matrix_units
from weft.emit.triton.rebuild import StepList
from weft.emit.triton.tiles import needed_by
from weft.ir.types import DType
from weft.kernels.kernel import (
    Affine,
    Contract,
    Kernel,
    Load,
    Operand,
    Store,
)
from weft.kernels.roles import roles_of
from weft.records import dataclass

LIBRARY_TYPES = {"bf16", "f16", "f32", "f64"}
CALLS = 16  # calls of the library that a product may take
ALGORITHMS = 16  # algorithms that cuBLASLt is asked to propose


@dataclass(frozen=True, slots=True)
class Matrices:
    """Stacks of matrices in memory: an operand, an offset, sizes and strides in elements.

    The last two dims are those of a matrix; of the others, the library takes the last as it is.
    """

    operand: int
    offset: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LibraryProduct:
    """A product on views of memory: out[b] = lhs[b] @ rhs[b]."""

    lhs: Matrices
    rhs: Matrices
    out: Matrices
    dtype: DType
    tf32: bool
    epilogue: tuple[Kernel, tuple[int, ...]] | None  # and its operands: `out` is the last
    scratch: tuple[Operand, ...]


@dataclass(frozen=True, slots=True)
class _Dims:
    """The factors of a product as dims: rows, columns and depth each of one stride everywhere."""

    batch: tuple[tuple[int, ...], ...]
    rows: tuple[int, ...]
    columns: tuple[int, ...]
    depth: tuple[int, ...]


def library_product(kernel: Kernel) -> LibraryProduct | None:
    """The product of a kernel of collapsed loops, if the library takes its operands as they are."""
    if refuses_matrix_units(kernel, LIBRARY_TYPES) is not None:
        return None
    at = contract_of(kernel)
    contract = kernel.steps[at]
    assert isinstance(contract, Contract)
    lhs, rhs = kernel.steps[contract.lhs], kernel.steps[contract.rhs]
    if not (isinstance(lhs, Load) and isinstance(rhs, Load)):
        return None
    if lhs.guards or lhs.shifts or rhs.guards or rhs.shifts:
        return None
    if lhs.dtype.name not in LIBRARY_TYPES or contract.dtype is not lhs.dtype:
        return None
    direct = _stored_at(kernel, at)
    if direct is not None:
        made = _views(kernel, lhs, rhs, direct.operand, direct.at)
        if made is not None and made[2].strides[-1] == 1:
            return LibraryProduct(*made, lhs.dtype, contract.tf32, None, ())
    roles = roles_of(kernel)
    place = dense_index(kernel, (*roles.batch, *roles.rows, *roles.columns))
    made = _views(kernel, lhs, rhs, len(kernel.operands), place)
    if made is None:
        return None
    scratch, epilogue = after_scratch(kernel, at, place)
    return LibraryProduct(*made, lhs.dtype, contract.tf32, epilogue, (scratch,))


def after_scratch(
    kernel: Kernel, at: int, place: Affine
) -> tuple[Operand, tuple[Kernel, tuple[int, ...]]]:
    """Scratch for the contraction's result, at a place each, and the kernel that follows."""
    contract = kernel.steps[at]
    assert isinstance(contract, Contract)
    free = [f for n, f in enumerate(kernel.factors) if n not in contract.over]
    scratch = Operand(contract.dtype, (math.prod([f.size for f in free]),), True)
    return scratch, _epilogue(kernel, at, place, scratch)


def dense_index(kernel: Kernel, factors: Sequence[int]) -> Affine:
    """The index in a dense array of these factors, in row-major order."""
    strides, size = [0] * len(kernel.factors), 1
    for f in reversed(factors):
        strides[f] = size
        size *= kernel.factors[f].size
    return Affine(tuple(strides))


def _views(
    kernel: Kernel, lhs: Load, rhs: Load, operand: int, place: Affine
) -> tuple[Matrices, Matrices, Matrices] | None:
    """Both sides and the result as stacks of matrices, or None."""
    dims = _dims(kernel, (lhs.at, rhs.at, place))
    if dims is None:
        return None
    made = (
        _matrices(kernel, lhs.operand, lhs.at, (*dims.batch, dims.rows, dims.depth)),
        _matrices(kernel, rhs.operand, rhs.at, (*dims.batch, dims.depth, dims.columns)),
        _matrices(kernel, operand, place, (*dims.batch, dims.rows, dims.columns)),
    )
    if any(min(m.strides) < 0 or m.offset < 0 for m in made):
        return None
    if any(1 not in m.strides[-2:] for m in made[:2]):
        return None
    calls = math.prod(made[0].sizes[:-3])
    return made if calls <= CALLS else None


def _dims(kernel: Kernel, accesses: Sequence[Affine]) -> _Dims | None:
    """Rows and columns of one stride; their outer factors are batch where they have another."""
    roles = roles_of(kernel)
    if _merged(kernel, roles.depth, accesses) < len(roles.depth):
        return None
    batch = [(f,) for f in roles.batch]
    sides = []
    for factors in (roles.rows, roles.columns):
        count = _merged(kernel, factors, accesses)
        sides.append(factors[len(factors) - count :])
        batch += [(f,) for f in factors[: len(factors) - count]]
    grouped: list[tuple[int, ...]] = []
    for one in batch:
        if grouped and _merged(kernel, (*grouped[-1], *one), accesses) > len(grouped[-1]):
            grouped[-1] = (*grouped[-1], *one)
        else:
            grouped.append(one)
    return _Dims(tuple(grouped) or ((),), sides[0], sides[1], roles.depth)


def _merged(kernel: Kernel, factors: Sequence[int], accesses: Sequence[Affine]) -> int:
    """How many of the last factors every access runs through as through one."""
    count = min(1, len(factors))
    while count < len(factors):
        outer, inner = factors[-count - 1], factors[-count]
        step = kernel.factors[inner].size
        if any(at.strides[outer] != at.strides[inner] * step for at in accesses):
            break
        count += 1
    return count


def _matrices(
    kernel: Kernel, operand: int, at: Affine, dims: Sequence[tuple[int, ...]]
) -> Matrices:
    """An access as stacks of matrices."""
    sizes = tuple([math.prod(kernel.factors[f].size for f in factors) for factors in dims])
    strides = tuple([at.strides[factors[-1]] if factors else 1 for factors in dims])
    return Matrices(operand, at.offset, sizes, strides)


def _stored_at(kernel: Kernel, at: int) -> Store | None:
    """The store of the contraction, if it is all that follows."""
    stores = [s for s in kernel.steps if isinstance(s, Store)]
    if len(stores) != 1 or stores[0].arg != at or stores[0].guards:
        return None
    same = kernel.operands[stores[0].operand].dtype is kernel.steps[at].dtype  # type: ignore[union-attr]
    return stores[0] if same else None


def _epilogue(
    kernel: Kernel, at: int, place: Affine, scratch: Operand
) -> tuple[Kernel, tuple[int, ...]]:
    """The steps after the contraction, which they load from scratch."""
    contract = kernel.steps[at]
    assert isinstance(contract, Contract)
    load = Load(len(kernel.operands), place, contract.dtype)
    stores = [n for n, s in enumerate(kernel.steps) if isinstance(s, Store)]
    steps = StepList()
    for n in sorted(needed_by(kernel, stores, [at]) | {at}):
        steps.keep(n, load if n == at else kernel.steps[n])
    reduced = reduced_factors(kernel)
    sizes = [replace(f, size=1) if n in reduced else f for n, f in enumerate(kernel.factors)]
    operands = (*kernel.operands, replace(scratch, output=False))
    return steps.kernel(kernel, kernel.name, sizes, operands)
