"""The input of blocking: sizes of a contraction, and the memory layout of its operands."""

from __future__ import annotations

from weft.emit.llvm.product.blocking.blocking import Chip, ProductShape
from weft.emit.llvm.product.microkernel.microkernel import VECTOR_GROUPS, MultiplyKind, SideLines
from weft.emit.llvm.product.microkernel.tiles import LINES, TILE_GROUPS
from weft.emit.llvm.product.product import Product, required_steps
from weft.emit.llvm.product.tiles import BF16, tile_instruction
from weft.emit.llvm.writer.storage import memory_kind, register_kind
from weft.emit.llvm.writer.vector import BITS
from weft.ir.types import DType
from weft.kernels.kernel import Load, Store

# The rows, and the columns and K, from which packing pairs of bf16 pays off, as measured.
_PAIRED_ROWS, _PAIRED_LEAST = 12, 8


def shape_of(product: Product, chip: Chip) -> ProductShape:
    """The shape of a product."""
    kind = register_kind(product.contract.held)
    lines = _lines(product, product.contract.lhs, product.rows, "rows")
    rhs_lines = _lines(product, product.contract.rhs, product.columns, "columns")
    multiply = tile_instruction(product, chip) or _multiply(product, chip)
    group = TILE_GROUPS.get(multiply) or VECTOR_GROUPS.get(multiply, 1)
    batch, rows, columns, k = product.sizes
    # Tiles take 16 K steps at a time: K is padded with zeros to whole ones.
    steps = -(-k // group)
    tiled = multiply in TILE_GROUPS
    return ProductShape(
        batch,
        rows,
        columns,
        -(-steps // LINES) * LINES if tiled else steps,
        kind,
        BITS[kind] // 8,
        multiply,
        lines,
        rhs_lines,
        tiles_direct(product, group) if tiled else group == 1 and _lhs_direct(product, kind, lines),
        group == 1 and _rhs_direct(product, kind),
        group,
        multiply == "dot4" and product.dtype(product.contract.lhs).kind == "int",
        group == 1 and _inner(product, kind),
        _stored(product, product.contract.lhs, kind),
        _stored(product, product.contract.rhs, kind),
        group == 1 and _rhs_dense(product, kind),
        product.repeats,
    )


def _multiply(product: Product, chip: Chip) -> MultiplyKind:
    """The multiply-accumulate form: several products at a time, where instructions exist."""
    contract = product.contract
    lhs, rhs = product.dtype(contract.lhs), product.dtype(contract.rhs)
    if contract.held.is_float:
        pairs = chip.has_bf16_dot and contract.held.bits == 32 and lhs is rhs is BF16
        _, rows, columns, k = product.sizes
        worth = rows >= _PAIRED_ROWS and min(columns, k) >= _PAIRED_LEAST
        return "dot2_bf16" if pairs and worth else "fma"
    if not chip.has_vnni or contract.held.bits != 32:
        return "mul"
    # vpdpbusd multiplies unsigned bytes by signed ones; a signed LHS is offset by 128 (`offset`).
    if max(lhs.bits, rhs.bits) <= 8 and rhs.kind == "int" and lhs.is_integer:
        return "dot4"
    # vpdpwssd multiplies signed 16-bit numbers, which hold all unsigned bytes.
    fits = all(d.is_integer and d.bits <= (16 if d.kind == "int" else 8) for d in (lhs, rhs))
    return "dot2" if fits else "mul"


def bare_load(product: Product, step: int) -> Load | None:
    """A step that is a plain load, or None."""
    found = product.kernel.steps[step]
    if isinstance(found, Load) and not found.guards and not found.shifts:
        return found
    return None


def plain_store(product: Product) -> Store | None:
    """The only epilogue step, if it is a store that blocks can write directly."""
    kernel, contract = product.kernel, product.contract
    if len(product.after) != 1 or product.reduced:
        return None
    step = kernel.steps[product.after[0]]
    assert isinstance(step, Store)
    same = kernel.operands[step.operand].dtype == contract.held == contract.dtype
    even = product.stride(step.at, product.rows) is not None
    side_by_side = product.stride(step.at, product.columns) == 1
    return step if same and even and side_by_side and not step.guards else None


def _lines(product: Product, side: int, role: tuple[int, ...], name: SideLines) -> SideLines:
    """The contiguous direction of a side; K if there is none."""
    steps = product.kernel.steps
    loads = [s for n in required_steps(steps, [side], ()) if isinstance(s := steps[n], Load)]
    near = {
        name: [load.at.strides[f] == 1 for load in loads for f in along[-1:]]
        for name, along in (("k", product.k), (name, role))
    }
    if name == "rows":  # the LHS is broadcast: along K it is read in place
        return name if any(near[name]) and not any(near["k"]) else "k"
    return "k" if any(near["k"]) and not any(near[name]) else name


def _lhs_direct(product: Product, kind: str, lines: SideLines) -> bool:
    """Whether the LHS has evenly spaced lines of the multiplied type."""
    load = bare_load(product, product.contract.lhs)
    if load is None or memory_kind(load.dtype) != kind:
        return False
    along, across = product.k, product.rows
    if lines == "rows":
        along, across = across, along
    return product.stride(load.at, along) == 1 and product.stride(load.at, across) is not None


def tiles_direct(product: Product, group: int) -> bool:
    """Whether AMX tiles of the LHS can be loaded in place: whole ones, along K."""
    load = bare_load(product, product.contract.lhs)
    return (
        load is not None
        and load.dtype.bits * group == 32
        and product.size(product.k) % (LINES * group) == 0
        and product.stride(load.at, product.k) == 1
        and product.stride(load.at, product.rows) is not None
    )


def _rhs_direct(product: Product, kind: str) -> bool:
    """Whether the RHS has lines of columns, in a type that loads can widen."""
    load = bare_load(product, product.contract.rhs)
    return (
        load is not None
        and register_kind(load.dtype) == kind
        and product.stride(load.at, product.k) is not None
        and product.stride(load.at, product.columns) == 1
    )


def _rhs_dense(product: Product, kind: str) -> bool:
    """Whether the RHS can be read in place, with contiguous lines."""
    load = bare_load(product, product.contract.rhs)
    if load is None or memory_kind(load.dtype) != kind or not _rhs_direct(product, kind):
        return False
    return product.stride(load.at, product.k) == product.size(product.columns)


def _inner(product: Product, kind: str) -> bool:
    """Whether both sides have lines along K, in types that loads can widen."""
    sides = [bare_load(product, n) for n in (product.contract.lhs, product.contract.rhs)]
    return all(
        load is not None
        and register_kind(load.dtype) == kind
        and product.stride(load.at, product.k) == 1
        and product.stride(load.at, role) is not None
        for load, role in zip(sides, (product.rows, product.columns), strict=True)
    )


def _stored(product: Product, side: int, kind: str) -> DType | None:
    """The memory type of a side, where it differs from the register type."""
    load = bare_load(product, side)
    return load.dtype if load is not None and memory_kind(load.dtype) != kind else None
