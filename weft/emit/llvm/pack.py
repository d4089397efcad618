"""Packing the operands of a product: what comes before it is computed on the way.

The left side is packed in lines along its depth, or in lines of the rows of a panel, whichever its
elements are neighbours in; the right side in lines of the columns of a panel.
"""

from __future__ import annotations

from collections.abc import Callable

from weft.emit.llvm.blocking import Blocking, Panels, Shape
from weft.emit.llvm.code import Code
from weft.emit.llvm.nest import plus, pointers, smaller, times
from weft.emit.llvm.product import Product
from weft.emit.llvm.product_points import Point, flat_lanes, flat_point, lane_count
from weft.emit.llvm.product_values import Values
from weft.emit.llvm.vector import Vector, Vectors

PACK_LEFT = "pack_left"
PACK_RIGHT = "pack_right"
PARAMS = (
    "ptr %operands",
    "ptr noalias %to",
    "i64 %batch",
    "i64 %first",  # of rows, or of panels
    "i64 %last",
    "i64 %near",  # where along the depth
    "i64 %far",
)
TYPES = "ptr, ptr, i64, i64, i64, i64, i64"


def line_length(blocking: Blocking, element: int) -> int:
    """The elements from one packed line of the left side to the next, along its depth."""
    line = 64 // element
    # Lines a multiple of a page apart would compete for the same few places of the first cache.
    return -(-blocking.depth // line) * line + line


def pack_left_depth(product: Product, shape: Shape, blocking: Blocking) -> Code:
    """to[m - first, k - near] = lhs[batch, m, k], for first <= m < last and near <= k < far."""
    code = _function(PACK_LEFT)
    factors = product.kernel.factors
    v = Vectors(code, lane_count(factors, product.depth, blocking.width))
    values = Values(product.kernel, v, pointers(code, len(product.kernel.operands)))
    batch = flat_point(code, factors, product.batch, "%batch")
    wanted = product.contract.lhs
    length = line_length(blocking, shape.element)
    with code.loop("%first", "%last") as row:
        here = batch | flat_point(code, factors, product.rows, row.index)
        down = code.let(f"sub nsw i64 {row.index}, %first")
        line = v.at("%to", times(code, down, length), shape.kind)

        def body(at: str, mask: Vector | None, here: Point = here, line: str = line) -> None:
            point = here | flat_lanes(v, factors, product.depth, at)
            value = values.side(wanted, point, mask)
            v.store(value, v.at(line, code.let(f"sub nsw i64 {at}, %near"), shape.kind))

        in_chunks(v, "%near", "%far", product.size(product.depth), body)
    return code


def pack_left_rows(product: Product, shape: Shape, blocking: Blocking) -> Code:
    """to[panel - first][k - near, m] = lhs[batch, m, k], of panels first..last-1."""
    code = _function(PACK_LEFT)
    factors = product.kernel.factors
    most = blocking.rows.most
    width = 1
    while width < most:
        width *= 2
    v = Vectors(code, width)
    values = Values(product.kernel, v, pointers(code, len(product.kernel.operands)))
    batch = flat_point(code, factors, product.batch, "%batch")
    # Along the rows first: the left side is read as it lies in memory.
    with code.loop("%near", "%far") as step:
        here = batch | flat_point(code, factors, product.depth, step.index)
        along = code.let(f"sub nsw i64 {step.index}, %near")
        with code.loop("%first", "%last") as panel:
            start, count = panel_bounds(code, blocking.rows, panel.index)
            down = code.let(f"sub nsw i64 {panel.index}, %first")
            base = v.at("%to", times(code, down, most * blocking.depth), shape.kind)
            mask = v.first(count)
            point = here | flat_lanes(v, factors, product.rows, start, aligned=False)
            value = values.side(product.contract.lhs, point, mask)
            at = v.at(base, code.let(f"mul nsw i64 {along}, {count}"), shape.kind)
            v.store_masked(value, at, mask)
    return code


def pack_right(product: Product, shape: Shape, blocking: Blocking) -> Code:
    """to[panel][k, n] = rhs[batch, k, n], of panels first..last-1 and near <= k < far.

    A panel begins at its first column times the depth; in a task, columns are counted from those
    of its first panel, and the depth is a part of it. Columns beyond the last are 0.
    """
    code = _function(PACK_RIGHT)
    factors = product.kernel.factors
    v = Vectors(code, lane_count(factors, product.columns, blocking.width))
    values = Values(product.kernel, v, pointers(code, len(product.kernel.operands)))
    batch = flat_point(code, factors, product.batch, "%batch")
    count = product.size(product.columns)
    depth, origin = shape.depth, "0"
    if blocking.right == "task":
        depth = blocking.depth
        origin = times(code, panel_bounds(code, blocking.vectors, "%first")[0], blocking.width)
    # Along the rows of the right side first: its elements are read as they lie in memory.
    with code.loop("%near", "%far") as step:
        here = batch | flat_point(code, factors, product.depth, step.index)
        down = step.index
        if blocking.right == "task":
            down = code.let(f"sub nsw i64 {step.index}, %near")
        with code.loop("%first", "%last") as panel:
            start, vectors = panel_bounds(code, blocking.vectors, panel.index)
            columns, start = (times(code, n, blocking.width) for n in (vectors, start))
            along = code.let(f"mul nsw i64 {down}, {columns}")
            begin = code.let(f"sub nsw i64 {start}, {origin}")
            line = v.at("%to", plus(code, times(code, begin, depth), along), shape.kind)
            with code.loop(0, columns, v.width, at_least_once=True) as chunk:
                at = plus(code, start, chunk.index)
                point = here | flat_lanes(v, factors, product.columns, at)
                mask = None
                if count % v.width:
                    mask = v.first(code.let(f"sub nsw i64 {count}, {at}"))
                value = values.side(product.contract.rhs, point, mask)
                v.store(value, v.at(line, chunk.index, shape.kind))
    return code


def panel_bounds(code: Code, panels: Panels, panel: str) -> tuple[str, str]:
    """The first number of a panel, and how many it has."""
    start = times(code, panel, panels.size)
    if not panels.large:
        return start, str(panels.size)
    start = plus(code, start, smaller(code, panel, panels.large))
    more = code.let(f"icmp slt i64 {panel}, {panels.large}")
    return start, code.let(f"select i1 {more}, i64 {panels.size + 1}, i64 {panels.size}")


def in_chunks(
    v: Vectors, begin: str, end: str, size: int, body: Callable[[str, Vector | None], None]
) -> None:
    """Run a body on vectors of numbers begin..end-1, the last one masked if size says so."""
    code = v.code
    if size % v.width == 0:
        with code.loop(begin, end, v.width) as chunk:
            body(chunk.index, None)
        return
    count = code.let(f"sub nsw i64 {end}, {begin}")
    whole = code.let(f"urem i64 {count}, {v.width}")
    edge = code.let(f"sub nsw i64 {end}, {whole}")
    with code.loop(begin, edge, v.width) as chunk:
        body(chunk.index, None)
    with code.when(code.let(f"icmp ne i64 {whole}, 0")):
        body(edge, v.first(whole))


def _function(name: str) -> Code:
    code = Code(name, PARAMS, internal=True)
    code.header += " noinline nounwind"
    return code
