"""What blocks of a product are chosen by: its sizes, and how its operands lie in memory."""

from __future__ import annotations

from weft.emit.llvm.blocking import Shape
from weft.emit.llvm.microkernel import Lines, Multiply
from weft.emit.llvm.product import Product, needed
from weft.emit.llvm.storage import memory_kind, register_kind
from weft.emit.llvm.vector import BITS
from weft.kernels.kernel import Load, Store


def shape_of(product: Product) -> Shape:
    """The shape of a product."""
    kind = register_kind(product.contract.held)
    lines = _left_lines(product)
    multiply: Multiply = "fma" if product.contract.held.is_float else "mul"
    return Shape(
        *product.sizes,
        kind,
        BITS[kind] // 8,
        multiply,
        lines,
        _left_direct(product, kind, lines),
        _right_direct(product, kind),
    )


def bare_load(product: Product, step: int) -> Load | None:
    """A step that is a load of what lies in memory, and nothing else."""
    found = product.kernel.steps[step]
    if isinstance(found, Load) and not found.guards and not found.shifts:
        return found
    return None


def plain_store(product: Product) -> Store | None:
    """The only step after the sum, if it is a store that a block can be written to as it is."""
    kernel, contract = product.kernel, product.contract
    if len(product.after) != 1 or len(product.rows) > 1 or len(product.columns) > 1:
        return None
    step = kernel.steps[product.after[0]]
    assert isinstance(step, Store)
    same = kernel.operands[step.operand].dtype == contract.held == contract.dtype
    side_by_side = all(step.at.strides[f] == 1 for f in product.columns)
    return step if same and side_by_side and not step.guards else None


def _left_lines(product: Product) -> Lines:
    """Along what the elements of the left side are neighbours; the depth, if along nothing."""
    steps = product.kernel.steps
    loads = [
        step
        for n in needed(steps, [product.contract.lhs], ())
        if isinstance(step := steps[n], Load)
    ]
    if any(load.at.strides[f] == 1 for load in loads for f in product.depth[-1:]):
        return "depth"
    rows = any(load.at.strides[f] == 1 for load in loads for f in product.rows[-1:])
    return "rows" if rows else "depth"


def _left_direct(product: Product, kind: str, lines: Lines) -> bool:
    load = bare_load(product, product.contract.lhs)
    return (
        load is not None
        and memory_kind(load.dtype) == kind
        and len(product.rows) <= 1
        and len(product.depth) <= 1
        and all(
            load.at.strides[f] == 1 for f in (product.rows if lines == "rows" else product.depth)
        )
    )


def _right_direct(product: Product, kind: str) -> bool:
    load = bare_load(product, product.contract.rhs)
    return (
        load is not None
        and memory_kind(load.dtype) == kind
        and len(product.depth) <= 1
        and len(product.columns) <= 1
        and all(load.at.strides[f] == 1 for f in product.columns)
    )
