"""The microkernel: a register block of the result, accumulated over one block of K.

    block[i][j] = sum over k of lhs[i, k] * rhs[k, j]

An element of the LHS is broadcast; rows of the RHS are loaded as vectors. Strides and
K are run-time parameters: one function serves every contraction with a block of this size.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from weft.emit.llvm.writer import storage
from weft.emit.llvm.writer.code import Writer
from weft.emit.llvm.writer.nest import plus, times
from weft.emit.llvm.writer.vector import BITS, Vector, Vectors
from weft.ir.types import DType
from weft.records import dataclass

PARAMS = (
    "ptr noalias readonly %lhs",
    "i64 %lhs_stride",
    "ptr noalias readonly %rhs",
    "i64 %rhs_stride",
    "ptr noalias %out",
    "i64 %out_stride",
    "i64 %k",
    "i1 %accumulate",
    "i64 %lanes",
    "ptr readnone %ahead",
)
SideLines = Literal["rows", "columns", "k"]  # the contiguous direction of a side
MultiplyKind = Literal[
    "fma",
    "mul",
    "dot2",
    "dot4",
    "dot2_bf16",
    "tdpbf16ps",
    "tdpbssd",
    "tdpbsud",
    "tdpbusd",
    "tdpbuud",
]
VECTOR_GROUPS = {"dot2": 2, "dot4": 4, "dot2_bf16": 2}  # K steps in a 32-bit lane
# Prefetches: a share of the next panel, or the next LHS, both at %ahead; or rows.
Prefetch = Literal["nothing", "panel", "lhs", "rows"]

_PREFETCH_DISTANCE = 16  # K steps from the prefetch of a row of the RHS to its use

# Of x86-64's 16 general registers; the others hold strides, the RHS, K and the
# stack.
POINTERS = 9  # rows up to which each has its own pointer
_SHARE = 3  # rows that one pointer reaches by scaled addressing: stride times 0, 1 and 2


@dataclass(frozen=True, slots=True)
class RegisterBlock:
    """A register block: rows of vectors, and how they are multiplied and accumulated."""

    rows: int
    vectors: int
    width: int
    kind: str  # LLVM element type
    lines: SideLines
    multiply: MultiplyKind = "fma"
    masked: bool = False  # only `lanes` of the last vector are valid
    ahead: Prefetch = "nothing"  # what every step prefetches
    stored: DType | None = None  # memory type of the RHS, if it differs
    lhs_stored: DType | None = None  # and of the LHS
    adds: bool = False  # accumulates onto the output if %accumulate is set
    unroll: int = 1  # unrolled steps; divides K
    begins: bool = False  # the first packed row holds initial sums
    inner: bool = False  # lanes are along K, and `vectors` counts columns

    @property
    def name(self) -> str:
        """The name of the function."""
        words = [self.kind, self.lines, self.multiply]
        words += ["masked"] if self.masked else []
        words += [f"{self.ahead}_ahead"] if self.ahead != "nothing" else []
        words += [f"rhs_{self.stored}"] if self.stored else []
        words += [f"lhs_{self.lhs_stored}"] if self.lhs_stored else []
        words += ["adds"] if self.adds else []
        words += [f"by{self.unroll}"] if self.unroll > 1 else []
        words += ["begins"] if self.begins else []
        words += ["inner"] if self.inner else []
        return "_".join([f"block_{self.rows}x{self.vectors}x{self.width}", *words])

    @property
    def columns(self) -> int:
        """The columns of the block."""
        return self.vectors * self.width

    @property
    def element(self) -> int:
        """The bytes of an element."""
        return BITS[self.kind] // 8


def microkernel(block: RegisterBlock) -> Writer:
    """The function of a block; strides are in bytes.

    With `%accumulate` a block adds to the contents of `out`. `lhs_stride` leads from row
    to row where K is contiguous, and else from one K step to the next.
    """
    code = Writer(block.name, PARAMS, internal=True)
    code.header += " noinline nounwind"
    v = Vectors(code, block.width)
    mask = v.first("%lanes") if block.masked else None
    # The output's lines are fetched for writing now, and arrive while the K loop runs.
    for i in range(block.rows):
        for j in range(0, block.columns * block.element, 64):
            row = plus(code, times(code, "%out_stride", i), j)
            prefetch(code, "%out", row, write=True)
    fixed = _lhs_pointers(code, block)
    rhs, first = _begin(v, block)
    moving = [*([] if _indexed(block) else fixed), rhs]
    carried = [("ptr", p) for p in moving] + first * block.rows
    far = times(code, "%rhs_stride", _PREFETCH_DISTANCE)
    with code.loop(0, "%k", block.unroll, carried) as loop:
        here, sums = list(loop.carried[: len(moving)]), list(loop.carried[len(moving) :])
        for n in range(block.unroll):
            index = plus(code, loop.index, n)
            if _indexed(block):
                lhs = [code.let(f"getelementptr {block.kind}, ptr {p}, i64 {index}") for p in fixed]
            else:
                lhs = [_lhs_at(code, block, here, i) for i in range(block.rows)]
            _fetch_ahead(code, block, index, far, here[-1])
            sums = _step(v, block, lhs, here[-1], sums, mask)
            here = _next(code, block, here)
        loop.carry(*here, *sums)
    _finish(v, block, loop.carried[len(moving) :], mask)
    return code


def _begin(v: Vectors, block: RegisterBlock) -> tuple[str, list[tuple[str, str]]]:
    """The RHS row that the loop begins at, and the initial sums: zeros, or the row packed first."""
    zero = (v.constant(0, block.kind).type, "zeroinitializer")
    if not block.begins:
        return "%rhs", [zero] * block.vectors
    read = [_read(v, "%rhs", j, block, None) for j in range(block.vectors)]
    rhs = v.code.let("getelementptr i8, ptr %rhs, i64 %rhs_stride")
    return rhs, [(one.type, one.text) for one in read]


def _fetch_ahead(code: Writer, block: RegisterBlock, index: str, far: str, rhs: str) -> None:
    """Prefetch for later steps or later blocks."""
    if block.ahead in ("panel", "lhs"):
        # One line of 64 bytes a step; `next_side` gives each block its own share to begin at.
        prefetch(code, "%ahead", code.let(f"shl i64 {index}, 6"), write=False)
    if block.ahead == "rows":
        element = block.stored.numpy.itemsize if block.stored else block.element
        for j in range(0, block.columns * element, 64):
            prefetch(code, rhs, plus(code, far, j), write=False)


def prefetch(code: Writer, base: str, far: str, *, write: bool) -> None:
    """Prefetch a cache line: for writing soon, or into L2 for reading later."""
    at = code.let(f"getelementptr i8, ptr {base}, i64 {far}")
    code.declare("declare void @llvm.prefetch.p0(ptr, i32 immarg, i32 immarg, i32 immarg)")
    # read or write, locality (3: L1, 2: L2), data cache
    how = f"i32 {int(write)}, i32 {3 if write else 2}, i32 1"
    code.do(f"call void @llvm.prefetch.p0(ptr {at}, {how})")


def _indexed(block: RegisterBlock) -> bool:
    """Whether each row of the LHS has its own pointer, indexed by K."""
    return block.lines == "k" and block.rows <= POINTERS


def _lhs_pointers(code: Writer, block: RegisterBlock) -> list[str]:
    """Pointers to the LHS, opaque to LLVM, whose own address arithmetic costs more."""
    if block.lines == "rows":
        return ["%lhs"]
    pointers = []
    for first in range(0, block.rows, 1 if _indexed(block) else _SHARE):
        far = code.let(f"mul i64 %lhs_stride, {first}")
        at = code.let(f"getelementptr i8, ptr %lhs, i64 {far}")
        # an empty asm: LLVM cannot see how the pointers are related
        pointers.append(code.let(f'call ptr asm "", "=r,0"(ptr {at})'))
    return pointers


def _next(code: Writer, block: RegisterBlock, here: list[str]) -> list[str]:
    *lhs, rhs = here
    step = "%lhs_stride" if block.lines == "rows" else str(block.element)
    made = [code.let(f"getelementptr i8, ptr {p}, i64 {step}") for p in lhs]
    return [*made, code.let(f"getelementptr i8, ptr {rhs}, i64 %rhs_stride")]


def _lhs_at(code: Writer, block: RegisterBlock, lhs: list[str], row: int) -> str:
    if block.lines == "rows":
        return code.let(f"getelementptr {block.kind}, ptr {lhs[0]}, i64 {row}")
    base, times = lhs[row // _SHARE], row % _SHARE
    if times == 0:
        return base
    far = "%lhs_stride" if times == 1 else code.let(f"mul i64 %lhs_stride, {times}")
    return code.let(f"getelementptr i8, ptr {base}, i64 {far}")


def _step(
    v: Vectors,
    block: RegisterBlock,
    lhs: list[str],
    rhs: str,
    sums: list[str],
    mask: Vector | None,
) -> list[str]:
    """One K step: the sums with one more product each."""
    columns = [_rhs(v, rhs, j, block, mask) for j in range(block.vectors)]
    scalar = Vectors(v.code, 1)
    updated = []
    for i, at in enumerate(lhs):
        spread = v.splat(scalar.load(at, block.kind))
        for j, column in enumerate(columns):
            old = Vector(sums[i * block.vectors + j], block.kind, v.width)
            updated.append(MULTIPLY[block.multiply](v, spread, column, old).text)
    return updated


def _rhs(v: Vectors, base: str, j: int, block: RegisterBlock, mask: Vector | None) -> Vector:
    if block.stored is None:
        return _read(v, base, j, block, mask)
    last = mask if j == block.vectors - 1 else None
    (found,) = storage.load(v, base, j * block.width, block.stored, last)
    return found


def _read(v: Vectors, base: str, j: int, block: RegisterBlock, mask: Vector | None) -> Vector:
    at = v.at(base, j * block.width, block.kind)
    if mask is not None and j == block.vectors - 1:
        return v.load_masked(at, mask, block.kind)
    return v.load(at, block.kind)


def _finish(v: Vectors, block: RegisterBlock, sums: tuple[str, ...], mask: Vector | None) -> None:
    """Store the sums, or add them to the output."""
    code = v.code
    there = v.splat(Vector("%accumulate", "i1")) if block.adds else None
    for i in range(block.rows):
        row = "%out"
        if i:
            far = code.let(f"mul i64 %out_stride, {i}")
            row = code.let(f"getelementptr i8, ptr %out, i64 {far}")
        for j in range(block.vectors):
            total = Vector(sums[i * block.vectors + j], block.kind, v.width)
            last = mask if j == block.vectors - 1 else None
            # Masked by %accumulate, too: uninitialized output must not be read as numbers.
            if there is not None:
                read = there if last is None else v.binary("and", there, last)
                total = v.add(
                    v.load_masked(v.at(row, j * v.width, block.kind), read, block.kind), total
                )
            _write(v, total, row, j, block, mask)


def _write(
    v: Vectors, value: Vector, base: str, j: int, block: RegisterBlock, mask: Vector | None
) -> None:
    at = v.at(base, j * block.width, block.kind)
    if mask is not None and j == block.vectors - 1:
        v.store_masked(value, at, mask)
    else:
        v.store(value, at)


def _fma(v: Vectors, a: Vector, b: Vector, c: Vector) -> Vector:
    """a * b + c, as an FMA where available."""
    # Not llvm.fma, which becomes a call of libm for every lane where the processor has no FMA.
    return v.intrinsic("fmuladd", a, b, c)


def _mul(v: Vectors, a: Vector, b: Vector, c: Vector) -> Vector:
    return v.add(v.mul(a, b), c)


def _dot4(v: Vectors, a: Vector, b: Vector, c: Vector) -> Vector:
    """c + the sum of four products of unsigned bytes of a and signed bytes of b (vpdpbusd)."""
    return _assembled(v, "vpdpbusd", a, b, c)


def _dot2(v: Vectors, a: Vector, b: Vector, c: Vector) -> Vector:
    """c + the sum of two products of signed halves (vpdpwssd)."""
    return _assembled(v, "vpdpwssd", a, b, c)


def _dot2_bf16(v: Vectors, a: Vector, b: Vector, c: Vector) -> Vector:
    """c + the sum of two products of bf16 (vdpbf16ps); lanes of a and b are pairs of bits."""
    return _assembled(v, "vdpbf16ps", a, b, c)


def _assembled(v: Vectors, instruction: str, a: Vector, b: Vector, c: Vector) -> Vector:
    # As inline assembly: the intrinsics' types differ between LLVM versions.
    words = f'asm "{instruction} $3, $2, $0", "=v,0,v,v"({c.typed}, {a.typed}, {b.typed})'
    return Vector(v.code.let(f"call {c.type} {words}"), c.kind, c.width)


MULTIPLY: dict[MultiplyKind, Callable[[Vectors, Vector, Vector, Vector], Vector]] = {
    "fma": _fma,
    "mul": _mul,
    "dot2": _dot2,
    "dot4": _dot4,
    "dot2_bf16": _dot2_bf16,
}
