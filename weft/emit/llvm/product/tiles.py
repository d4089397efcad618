"""Contractions on AMX tiles: which qualify, by which instruction, and in which blocks."""

from __future__ import annotations

from dataclasses import replace

from weft.emit.llvm.product.blocking.blocking import Chip, Panels, ProductShape, panels
from weft.emit.llvm.product.microkernel.microkernel import MultiplyKind
from weft.emit.llvm.product.microkernel.tiles import LINES, MOST, TILE_GROUPS
from weft.emit.llvm.product.product import Product
from weft.ir.types import DTYPES, TensorType
from weft.kernels.kernel import Apply, Load
from weft.ops.shape import BitcastConvert

BF16, I16 = DTYPES["bf16"], DTYPES["i16"]
# The least rows, columns, and K cells for which tiles pay off, as measured: vectors need
# packing for small integers as well.
_WORTH = {"tdpbf16ps": (6, 2, 12)}
_WORTH_OF_BYTES = (1, 1, 12)
_INSTRUCTIONS: dict[tuple[str, str], MultiplyKind] = {
    ("int", "int"): "tdpbssd",
    ("int", "uint"): "tdpbsud",
    ("uint", "int"): "tdpbusd",
    ("uint", "uint"): "tdpbuud",
}


def tile_instruction(product: Product, chip: Chip) -> MultiplyKind | None:
    """The AMX instruction for a contraction; None if none pays off."""
    contract = product.contract
    lhs, rhs = product.dtype(contract.lhs), product.dtype(contract.rhs)
    instruction: MultiplyKind | None = None
    if contract.held.is_float:
        if chip.has_amx_bf16 and contract.held.bits == 32 and lhs is rhs is BF16:
            instruction = "tdpbf16ps"
    elif chip.has_amx_int8 and contract.held.bits == 32 and max(lhs.bits, rhs.bits) <= 8:
        instruction = _INSTRUCTIONS.get((lhs.kind, rhs.kind))
    if instruction is None:
        return None
    _, rows, columns, k = product.sizes
    least = _WORTH.get(instruction, _WORTH_OF_BYTES)
    sizes = (rows, columns, k // TILE_GROUPS[instruction])
    return instruction if all(n >= few for n, few in zip(sizes, least, strict=True)) else None


def in_bits(product: Product) -> Product:
    """The contraction with bf16 sides as raw bits, to be packed as integers."""
    contract, steps = product.contract, list(product.kernel.steps)
    sides = []
    for side in (contract.lhs, contract.rhs):
        step = steps[side]
        if product.dtype(side) is BF16:
            sides.append(len(steps))
            if isinstance(step, Load):
                steps.append(replace(step, dtype=I16))
            else:
                steps.append(Apply(BitcastConvert(TensorType((), I16)), (side,), I16))
        else:
            sides.append(side)
    steps[product.at] = replace(contract, lhs=sides[0], rhs=sides[1])
    return replace(product, kernel=replace(product.kernel, steps=tuple(steps)))


def tile_panels(shape: ProductShape, options: dict[str, int]) -> tuple[Panels, Panels]:
    """Panels of rows and columns: squares of tiles, or lines of them where there are few."""
    in_vectors = max(1, -(-shape.columns // LINES))
    down = -(-shape.rows // LINES)
    across = options.get("vectors") or (MOST if down == 1 else 1 if in_vectors == 1 else 2)
    vectors = panels(in_vectors, min(across, MOST))
    most = LINES * (MOST // vectors.most)
    return panels(shape.rows, min(options.get("rows") or most, most)), vectors
