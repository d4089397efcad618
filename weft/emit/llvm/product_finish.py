"""The end of a product: what comes after the sum, on a block of it."""

from __future__ import annotations

from weft.emit.llvm.blocking import Blocking, Shape
from weft.emit.llvm.code import Code
from weft.emit.llvm.nest import plus, pointers, times
from weft.emit.llvm.pack import in_chunks
from weft.emit.llvm.product import Product
from weft.emit.llvm.product_points import Point, flat_lanes, flat_point, lane_count
from weft.emit.llvm.product_values import Values
from weft.emit.llvm.vector import Vector, Vectors
from weft.kernels.kernel import Load, Store

FINISH = "finish"
PARAMS = (
    "ptr %operands",
    "ptr noalias %sums",
    "i64 %batch",
    "i64 %row",
    "i64 %rows",
    "i64 %column",
    "i64 %columns",
)
TYPES = "ptr, ptr, i64, i64, i64, i64, i64"


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


def finish(product: Product, shape: Shape, blocking: Blocking) -> Code:
    """Run the steps after the sum on rows x columns of it, at `sums` in lines of a panel."""
    code = Code(FINISH, PARAMS, internal=True)
    code.header += " noinline nounwind"
    kernel, factors = product.kernel, product.kernel.factors
    panel = blocking.vectors * blocking.width
    v = Vectors(code, lane_count(factors, product.columns, panel))
    values = Values(kernel, v, pointers(code, len(kernel.operands)))
    batch = flat_point(code, factors, product.batch, "%batch")
    with code.loop(0, "%rows") as row:
        number = plus(code, "%row", row.index)
        here = batch | flat_point(code, factors, product.rows, number)
        line = v.at("%sums", times(code, row.index, panel), shape.kind)

        def body(at: str, mask: Vector | None, here: Point = here, line: str = line) -> None:
            total = v.load(v.at(line, at, shape.kind), shape.kind)
            column = plus(code, "%column", at)
            point = here | flat_lanes(v, factors, product.columns, column)
            values.end(product.at, product.after, point, total, mask)

        in_chunks(v, "0", "%columns", product.size(product.columns), body)
    return code


def bare_load(product: Product, step: int) -> Load | None:
    """A step that is a load of what lies in memory, and nothing else."""
    found = product.kernel.steps[step]
    if isinstance(found, Load) and not found.guards and not found.shifts:
        return found
    return None
