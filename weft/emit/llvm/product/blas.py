"""Contractions by a BLAS library: each task multiplies one piece of the result in one call.

The library runs in the threads of our pool, one call in each, and starts none of its own: two pools
would oversubscribe the cores. Its thread count is the process's: the first of several runs sets it
to one, and the last one restores it. The epilogue is a second pass over the sums in memory.
"""

from __future__ import annotations

from weft.emit.llvm.emitted import Emitted, Phase
from weft.emit.llvm.jit.blas import NO_TRANSPOSE, ROW_MAJOR, TRANSPOSE, Blas
from weft.emit.llvm.loops.emit import ALIGNED
from weft.emit.llvm.product.blocking.blocking import Chip, ProductShape, panels
from weft.emit.llvm.product.contraction import element
from weft.emit.llvm.product.finish import Sums, finish
from weft.emit.llvm.product.product import Product
from weft.emit.llvm.product.shape import bare_load, plain_store
from weft.emit.llvm.product.tasks import finish_phase, finish_tasks, shared_bytes
from weft.emit.llvm.writer.code import Writer, module_text
from weft.emit.llvm.writer.library_threads import one_thread, threads_again
from weft.emit.llvm.writer.nest import divided, function, plus, pointers, smaller, times
from weft.emit.llvm.writer.storage import memory_kind
from weft.kernels.kernel import Affine, Load, Store
from weft.records import dataclass

_STEP = 16  # rows or columns that pieces are multiples of
_MOST = 1 << 31  # bound of sizes and strides for 32-bit libraries


@dataclass(frozen=True, slots=True)
class _Side:
    """A matrix operand: whether it is transposed, and its leading dimension."""

    load: Load
    way: int
    line: int


@dataclass(frozen=True, slots=True)
class _Call:
    """A contraction as library calls: operands, output, and pieces."""

    product: Product
    shape: ProductShape
    lhs: _Side
    rhs: _Side
    store: Store | None  # None: to the workspace, for the epilogue
    line: int  # leading dimension of the result
    pieces: int
    size: int  # rows or columns of a piece
    by_rows: bool


def multiplies(product: Product, shape: ProductShape) -> bool:
    """Whether a library can compute it: both sides are f32 or f64 matrices in memory."""
    return _sides(product, shape) is not None


def emit_by_blas(product: Product, shape: ProductShape, chip: Chip, blas: Blas) -> Emitted:
    """The text of a contraction by a library, and its phases."""
    call = _call(product, shape, chip)
    assert call is not None, "the library supports the contraction"
    symbols, name = blas.symbols(), product.kernel.name
    functions = [_multiply(call, blas, symbols[shape.kind], name)]
    phases = [Phase(name, shape.batch * call.pieces)]
    sums = 0
    if call.store is None:
        sums = shape.batch * shape.rows * call.line * shape.element
        lanes = 2 * chip.vector // shape.element
        layout = Sums(call.line, frozenset({shape.columns}), lanes)
        functions.append(finish(product, shape, layout))
        functions.append(finish_phase(product, shape, layout, f"{name}_finish"))
        phases.append(Phase(f"{name}_finish", shape.batch * finish_tasks(shape)[0]))
    if blas.threads is not None:
        functions.append(one_thread(symbols, f"{name}_begin"))
        functions.append(threads_again(symbols, f"{name}_end"))
        phases = [Phase(f"{name}_begin", 1), *phases, Phase(f"{name}_end", 1)]
    return Emitted(module_text(*functions), tuple(phases), 0, -(-sums // ALIGNED) * ALIGNED)


def _call(product: Product, shape: ProductShape, chip: Chip) -> _Call | None:
    """The calls of a contraction; None if it does not qualify."""
    sides = _sides(product, shape)
    if sides is None:
        return None
    store = plain_store(product)
    line = shape.columns
    if store is not None:
        apart = _line(product, store.at, product.rows, product.columns)
        store, line = (None, line) if apart is None else (store, apart)
    by_rows = shape.rows >= shape.columns
    along = shape.rows if by_rows else shape.columns
    steps = -(-along // _STEP)
    size = panels(steps, -(-steps * shape.batch // chip.threads)).most * _STEP
    return _Call(product, shape, *sides, store, line, -(-along // size), size, by_rows)


def _sides(product: Product, shape: ProductShape) -> tuple[_Side, _Side] | None:
    """Both operands in the library's terms."""
    sizes = (shape.batch, shape.rows, shape.columns, shape.k)
    whole = shape.kind in ("float", "double") and all(0 < n < _MOST for n in sizes)
    if not whole or shape.tiled or product.reduced:
        return None
    lhs = _side(product, product.contract.lhs, product.rows, product.k, shape.kind)
    rhs = _side(product, product.contract.rhs, product.k, product.columns, shape.kind)
    return None if lhs is None or rhs is None else (lhs, rhs)


def _side(
    product: Product, step: int, down: tuple[int, ...], along: tuple[int, ...], kind: str
) -> _Side | None:
    """An operand whose rows are `down` and whose columns are `along`."""
    load = bare_load(product, step)
    if load is None or memory_kind(load.dtype) != kind:
        return None
    for way, lines, within in ((NO_TRANSPOSE, down, along), (TRANSPOSE, along, down)):
        line = _line(product, load.at, lines, within)
        if line is not None:
            return _Side(load, way, line)
    return None


def _line(
    product: Product, at: Affine, down: tuple[int, ...], along: tuple[int, ...]
) -> int | None:
    """The leading dimension of contiguous lines; None if the access is not a matrix."""
    count = product.size(along)
    if product.size(along) > 1 and product.stride(at, along) != 1:
        return None
    if product.size(down) == 1:
        return count
    apart = product.stride(at, down)
    return apart if apart is not None and count <= apart < _MOST else None


def _multiply(call: _Call, blas: Blas, symbol: str, name: str) -> Writer:
    """Each task multiplies one piece at one point of the batch."""
    code, product, shape = function(name), call.product, call.shape
    operands = pointers(code, len(product.kernel.operands))
    shared = "" if call.store is not None else shared_bytes(code, product)
    with code.loop("%begin", "%end") as task:
        batch, piece = divided(code, task.index, call.pieces)
        first = times(code, piece, call.size)
        along = shape.rows if call.by_rows else shape.columns
        count = smaller(code, code.let(f"sub nsw i64 {along}, {first}"), call.size)
        row, column = (first, "0") if call.by_rows else ("0", first)
        down, across = (count, shape.columns) if call.by_rows else (shape.rows, count)

        def at(operand: int, place: Affine, *where: tuple[tuple[int, ...], str]) -> str:
            held = (operands[operand], product.kernel.operands[operand].dtype)
            return element(code, product, held, place, batch, *where)

        lhs, rhs, store = call.lhs, call.rhs, call.store
        a = at(lhs.load.operand, lhs.load.at, (product.rows, row))
        b = at(rhs.load.operand, rhs.load.at, (product.columns, column))
        if store is not None:
            c = at(store.operand, store.at, (product.rows, row), (product.columns, column))
        else:
            far = times(code, plus(code, times(code, batch, shape.rows), row), call.line)
            c = code.let(f"getelementptr {shape.kind}, ptr {shared}, i64 {plus(code, far, column)}")
        whole = [_integer(code, blas, n) for n in (down, across, shape.k)]
        lines = [f"i{blas.bits} {n}" for n in (lhs.line, rhs.line, call.line)]
        ways = [f"i32 {n}" for n in (ROW_MAJOR, lhs.way, rhs.way)]
        one, none = (f"{shape.kind} {n}" for n in ("1.0", "0.0"))  # alpha, beta
        arguments = [*ways, *whole, one, f"ptr {a}", lines[0], f"ptr {b}", lines[1], none]
        arguments += [f"ptr {c}", lines[2]]
        types = ", ".join(word.partition(" ")[0] for word in arguments)
        code.declare(f"declare void @{symbol}({types})")
        code.do(f"call void @{symbol}({', '.join(arguments)})")
    return code


def _integer(code: Writer, blas: Blas, number: str | int) -> str:
    """An integer argument of the library's width."""
    if blas.bits == 64 or not str(number).startswith("%"):
        return f"i{blas.bits} {number}"
    return f"i32 {code.let(f'trunc i64 {number} to i32')}"
