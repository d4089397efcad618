"""Operand order for AMX tiles: the LHS is the one that can be read in place."""

from __future__ import annotations

from dataclasses import replace

from weft.emit.llvm.product.blocking.blocking import Chip
from weft.emit.llvm.product.microkernel.tiles import LINES, TILE_GROUPS
from weft.emit.llvm.product.product import Product
from weft.emit.llvm.product.shape import tiles_direct
from weft.emit.llvm.product.tiles import tile_instruction

_FEW_FLOATS = 2


def choose_sides(product: Product, chip: Chip) -> Product:
    """The contraction with swapped sides, if its RHS is along K with little reuse.

    With few rows against many weights, packing the weights would take longer than multiplying.
    """
    _, rows, columns, _ = product.sizes
    few = _FEW_FLOATS if product.contract.held.is_float else 0  # vectors read these weights as fast
    if not few < rows <= LINES or columns <= rows:
        return product
    swapped = _with_swapped_sides(product)
    instruction = tile_instruction(swapped, chip)
    if instruction is None or not tiles_direct(swapped, TILE_GROUPS[instruction]):
        return product
    return swapped


def _with_swapped_sides(product: Product) -> Product:
    """result[n, m] = sum over k of rhs[n, k] * lhs[k, m]."""
    contract, steps = product.contract, list(product.kernel.steps)
    steps[product.at] = replace(contract, lhs=contract.rhs, rhs=contract.lhs)
    kernel = replace(product.kernel, steps=tuple(steps))
    return replace(product, kernel=kernel, rows=product.columns, columns=product.rows)
