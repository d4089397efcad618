"""Which side of a product on matrix tiles is the left one: the one that can be read as it lies."""

from __future__ import annotations

from dataclasses import replace

from weft.emit.llvm.product.blocking.blocking import Chip
from weft.emit.llvm.product.microkernel.tiles import LINES, TILE_GROUPS
from weft.emit.llvm.product.product import Product
from weft.emit.llvm.product.shape import tiles_direct
from weft.emit.llvm.product.tiles import tile_instruction

_FEW_FLOATS = 2


def choose_sides(product: Product, chip: Chip) -> Product:
    """The product turned over, if its right side lies along the depth and is used but little.

    Few rows against many weights: to pack the weights would take longer than to multiply them.
    """
    _, rows, columns, _ = product.sizes
    few = _FEW_FLOATS if product.contract.held.is_float else 0  # whose weights vectors read as fast
    if not few < rows <= LINES or columns <= rows:
        return product
    turned = _turned_over(product)
    instruction = tile_instruction(turned, chip)
    if instruction is None or not tiles_direct(turned, TILE_GROUPS[instruction]):
        return product
    return turned


def _turned_over(product: Product) -> Product:
    """result[n, m] = sum over k of rhs[n, k] * lhs[k, m]."""
    contract, steps = product.contract, list(product.kernel.steps)
    steps[product.at] = replace(contract, lhs=contract.rhs, rhs=contract.lhs)
    kernel = replace(product.kernel, steps=tuple(steps))
    return replace(product, kernel=kernel, rows=product.columns, columns=product.rows)
