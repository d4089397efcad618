"""Products by PyTorch's library, cuBLAS on NVIDIA GPUs: on strided views of the operands.

Steps before a product and after it are kernels of their own, on scratch. A product of f32 is exact,
or of TF32 operands where the program allows it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from weft.emit.triton.collapse import reduced_factors
from weft.emit.triton.library.absorbed import Absorbed, absorbed
from weft.emit.triton.library.places import Matrices, dense_index
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
from weft.kernels.roles import Roles, roles_of, size_of
from weft.records import dataclass

LIBRARY_TYPES = {"bf16", "f16", "f32", "f64"}
PACKED = 256  # rows, columns and depth from which copies pay off
PACKED_TYPES = {"bf16", "f16"}
TORN = 128  # rows of a matrix
CALLS = 16  # calls of the library that a product may take
ALGORITHMS = 16  # algorithms that cuBLASLt is asked to propose


@dataclass(frozen=True, slots=True)
class LibraryProduct:
    """A product on views of memory: out[b] = lhs[b] @ rhs[b], and its fused epilogue."""

    lhs: Matrices
    rhs: Matrices
    out: Matrices
    dtype: DType
    tf32: bool
    absorbed: Absorbed
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
    if lhs.dtype.name not in LIBRARY_TYPES:
        return None
    roles = roles_of(kernel)
    store = only_store(kernel)
    if store is not None:
        epilogue_steps = absorbed(kernel, at, roles.columns, store.at, lhs.dtype)
        if epilogue_steps is not None and store.arg == epilogue_steps.last:
            product = _product(kernel, (lhs, rhs), epilogue_steps, store.operand, store.at)
            if product is not None and product.out.strides[-1] == 1:
                return product
    place = dense_index(kernel, (*roles.batch, *roles.rows, *roles.columns))
    same = Absorbed(at) if contract.dtype is lhs.dtype else None
    for epilogue_steps in (absorbed(kernel, at, roles.columns, place, lhs.dtype), same):
        if epilogue_steps is None:
            continue
        product = _product(kernel, (lhs, rhs), epilogue_steps, len(kernel.operands), place)
        if product is not None:
            scratch, epilogue = after_scratch(kernel, at, place, product.absorbed.last)
            return replace(product, epilogue=epilogue, scratch=(scratch,))
    return None


def _product(
    kernel: Kernel, sides: tuple[Load, Load], epilogue: Absorbed, operand: int, place: Affine
) -> LibraryProduct | None:
    """The product on views, written at a place of an operand, or None."""
    views = _views(kernel, *sides, operand, place)
    if views is None:
        return None
    is_split = views[2].sizes[-1] != size_of(kernel, roles_of(kernel).columns)
    if is_split and not epilogue.is_nothing:  # the bias is a vector of all columns
        return None
    contract = kernel.steps[contract_of(kernel)]
    assert isinstance(contract, Contract)
    return LibraryProduct(*views, sides[0].dtype, contract.tf32, epilogue, None, ())


def after_scratch(
    kernel: Kernel, at: int, place: Affine, last: int
) -> tuple[Operand, tuple[Kernel, tuple[int, ...]]]:
    """Scratch for the step `last` after a contraction, at a place each, and the kernel after it."""
    contract, step = kernel.steps[at], kernel.steps[last]
    assert isinstance(contract, Contract) and not isinstance(step, Store)
    free = [f for n, f in enumerate(kernel.factors) if n not in contract.over]
    scratch = Operand(step.dtype, (math.prod([f.size for f in free]),), True)
    return scratch, _epilogue(kernel, last, place, scratch)


def _views(
    kernel: Kernel, lhs: Load, rhs: Load, operand: int, place: Affine
) -> tuple[Matrices, Matrices, Matrices] | None:
    """Both sides and the result as stacks of matrices, or None."""
    dims = _dims(kernel, (lhs.at, rhs.at, place))
    if dims is None:
        return None
    views = (
        _matrices(kernel, lhs.operand, lhs.at, (*dims.batch, dims.rows, dims.depth)),
        _matrices(kernel, rhs.operand, rhs.at, (*dims.batch, dims.depth, dims.columns)),
        _matrices(kernel, operand, place, (*dims.batch, dims.rows, dims.columns)),
    )
    if any(min(m.strides) < 0 or m.offset < 0 for m in views):
        return None
    # BLAS takes a leading dim, and no stride in the other direction.
    if any(1 not in m.strides[-2:] for m in views[:2]):
        return None
    # One batch dim is the library's; each point of the others is a call.
    calls = math.prod(views[0].sizes[:-3])
    return None if calls > CALLS or _is_torn(kernel, lhs.dtype, views) else views


def _is_torn(kernel: Kernel, dtype: DType, views: tuple[Matrices, ...]) -> bool:
    """Whether rows are apart in memory, few of them together, and are better copied first."""
    roles = roles_of(kernel)
    few = views[0].sizes[-2] < TORN and math.prod(views[0].sizes[:-2]) > 1
    shares = not any(views[1].strides[:-2])
    return few and shares and dtype.name in PACKED_TYPES and is_worth_packing(kernel, roles)


def is_worth_packing(kernel: Kernel, roles: Roles) -> bool:
    """Whether a product reads its operands so often that copies of them pay off."""
    sizes = [size_of(kernel, factors) for factors in (roles.rows, roles.columns, roles.depth)]
    return min(sizes) >= PACKED


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


def only_store(kernel: Kernel) -> Store | None:
    """The only store, if it rounds nothing."""
    stores = [s for s in kernel.steps if isinstance(s, Store)]
    if len(stores) != 1 or stores[0].guards:
        return None
    step = kernel.steps[stores[0].arg]
    same = not isinstance(step, Store) and kernel.operands[stores[0].operand].dtype is step.dtype
    return stores[0] if same else None


def _epilogue(
    kernel: Kernel, at: int, place: Affine, scratch: Operand
) -> tuple[Kernel, tuple[int, ...]]:
    """The steps after the step `at`, which they load from scratch."""
    load = Load(len(kernel.operands), place, scratch.dtype)
    stores = [n for n, s in enumerate(kernel.steps) if isinstance(s, Store)]
    steps = StepList()
    for n in sorted(needed_by(kernel, stores, [at]) | {at}):
        steps.keep(n, load if n == at else kernel.steps[n])
    reduced = reduced_factors(kernel)
    sizes = [replace(f, size=1) if n in reduced else f for n, f in enumerate(kernel.factors)]
    operands = (*kernel.operands, replace(scratch, output=False))
    return steps.kernel(kernel, kernel.name, sizes, operands)
