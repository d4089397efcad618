"""Packing functions: their signature and the layout they write."""

from __future__ import annotations

from weft.emit.llvm.product.blocking.blocking import Blocking, Panels
from weft.emit.llvm.product.points import lane_count
from weft.emit.llvm.product.product import Product
from weft.emit.llvm.writer.code import Writer
from weft.emit.llvm.writer.nest import plus, smaller, times
from weft.kernels.kernel import Kernel

PACK_LHS = "pack_lhs"
PACK_RHS = "pack_rhs"
PARAMS = (
    "ptr %operands",
    "ptr noalias %to",
    "i64 %batch",
    "i64 %first",  # range of rows, or of panels
    "i64 %last",
    "i64 %near",  # range of K
    "i64 %far",
)


def pack_function(name: str, kernel: Kernel) -> Writer:
    """A function that packs."""
    code = Writer(name, PARAMS, internal=True, excess_precision=kernel.excess_precision)
    code.header += " noinline nounwind"
    return code


def panel_bounds(code: Writer, panels: Panels, panel: str) -> tuple[str, str]:
    """The first number of a panel, and its size."""
    start = times(code, panel, panels.size)
    if not panels.large:
        return start, str(panels.size)
    start = plus(code, start, smaller(code, panel, panels.large))
    more = code.let(f"icmp slt i64 {panel}, {panels.large}")
    return start, code.let(f"select i1 {more}, i64 {panels.size + 1}, i64 {panels.size}")


def line_length(blocking: Blocking, element: int) -> int:
    """The stride of packed lines of the LHS, in elements."""
    line = 64 // element
    # A stride of a multiple of the page size would map all lines to the same few L1 sets.
    return -(-blocking.block_k // line) * line + line


def first_line(code: Writer, product: Product, blocking: Blocking, first: str) -> str:
    """The first row of the packed lines: `first`, or some rows before it."""
    width = lane_count(product.kernel.factors, product.rows, blocking.width)
    return code.let(f"and i64 {first}, {-width}")
