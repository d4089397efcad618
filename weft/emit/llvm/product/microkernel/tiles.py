"""The AMX microkernel: tile registers of 16 rows of 64 bytes.

    block[i][j] += lhs[i, k] * rhs[k, j]     each a tile: 16 rows, 16 cells of 32 bits

A cell of the operands holds two K steps of bf16 or four of bytes; a cell of the block holds a
32-bit sum. Tile loads take any row stride, so that the LHS need not be packed.
"""

from __future__ import annotations

from weft.emit.llvm.product.microkernel.microkernel import PARAMS, RegisterBlock
from weft.emit.llvm.writer.code import Writer
from weft.emit.llvm.writer.nest import times

LINES = 16  # rows of a tile, and cells of a row
MOST = 4  # tiles of a block
# K steps in a cell, by the multiply instruction: signed or unsigned.
TILE_GROUPS = {"tdpbf16ps": 2, "tdpbssd": 4, "tdpbsud": 4, "tdpbusd": 4, "tdpbuud": 4}
_BYTES = 64
# The side with four tiles, when four of the eight registers are sums and one is the other side:
# three registers for four tiles; the last one, if shorter than the others, has its own.
_IN_TURN = (0, 1, 0, 2)


class Registers:
    """The tile register allocation for blocks of up to so many rows and vectors."""

    def __init__(self, rows: int, vectors: int) -> None:
        self.rows = rows
        self.down, self.across = -(-rows // LINES), vectors
        assert self.down * self.across <= MOST, "a block has no more tiles than registers"

    def block(self, i: int, j: int) -> int:
        """The accumulator register."""
        return i * self.across + j

    def lhs(self, i: int) -> int:
        """The register of a LHS tile."""
        return self.down * self.across + (_IN_TURN[i] if self.down == MOST else i)

    def rhs(self, j: int) -> int:
        """The register of a RHS tile."""
        first = self.lhs(self.down - 1) + 1
        return first + (_IN_TURN[j] if self.across == MOST else j)

    def configuration(self) -> bytes:
        """The tile configuration: palette 1, then bytes a row and rows of each tile."""
        words = bytearray(64)
        # Intel's layout: byte 0 is the palette, 16-bit row sizes from byte 16 on, row counts from
        # 48 on.
        words[0] = 1
        lines = {self.rhs(j): LINES for j in range(self.across)}
        for i in range(self.down):
            own = min(LINES, self.rows - i * LINES)
            lines |= {self.lhs(i): own} | {self.block(i, j): own for j in range(self.across)}
        for register, count in lines.items():
            words[16 + 2 * register] = _BYTES
            words[48 + register] = count
        return bytes(words)


def begin_tiles(code: Writer, registers: Registers) -> None:
    """Configure tiles for a thread (ldtilecfg)."""
    listed = ", ".join(f"i8 {byte}" for byte in registers.configuration())
    name = f"@tiles_{registers.rows}x{registers.across}"
    code.declare(f"{name} = private unnamed_addr constant [64 x i8] [{listed}], align 64")
    code.declare("declare void @llvm.x86.ldtilecfg(ptr)")
    code.do(f"call void @llvm.x86.ldtilecfg(ptr {name})")


def end_tiles(code: Writer) -> None:
    """Release the tiles (tilerelease): context switches are cheaper without their state."""
    code.declare("declare void @llvm.x86.tilerelease()")
    code.do("call void @llvm.x86.tilerelease()")


def tile_microkernel(block: RegisterBlock, registers: Registers, *, begins: bool) -> Writer:
    """The function of a block, with `microkernel`'s signature; K is in whole tiles.

    A block that configures tiles has exactly its own rows; otherwise the caller configures them.
    """
    code = Writer(block.name, PARAMS, internal=True)
    code.header += " noinline nounwind"
    if begins:
        registers = Registers(block.rows, registers.across)
        begin_tiles(code, registers)
    tiles = _Tiles(code, block, registers)
    tiles.start()
    down = code.let(f"mul i64 %lhs_stride, {LINES}")
    step = code.let(f"mul i64 %rhs_stride, {LINES}")
    carried = [("ptr", "%lhs"), ("ptr", "%rhs")]
    with code.loop(0, "%k", LINES, carried) as loop:
        lhs, rhs = loop.carried
        tiles.multiply(lhs, down, rhs)
        loop.carry(_moved(code, lhs, _BYTES), _moved(code, rhs, step))
    tiles.each("tilestored64")
    return code


class _Tiles:
    """Tile instructions of a block."""

    def __init__(self, code: Writer, block: RegisterBlock, registers: Registers) -> None:
        self.code, self.block, self.registers = code, block, registers
        self.down, self.across = registers.down, block.vectors

    def start(self) -> None:
        """Zero the accumulators, or load the current output."""
        code = self.code
        for i in range(self.down):
            for j in range(self.across):
                clear_tile(code, self.registers.block(i, j))
        if self.block.adds:
            with code.when("%accumulate"):
                self.each("tileloadd64")

    def each(self, instruction: str) -> None:
        """Load or store all accumulators."""
        code = self.code
        for i in range(self.down):
            row = _moved(code, "%out", times(code, "%out_stride", i * LINES))
            for j in range(self.across):
                at = _moved(code, row, j * _BYTES)
                move_tile(code, instruction, self.registers.block(i, j), at, "%out_stride")

    def multiply(self, lhs: str, down: str, rhs: str) -> None:
        """One K tile, each side loaded once."""
        code, registers = self.code, self.registers
        rows = [lhs]
        for _ in range(1, self.down):
            rows.append(_moved(code, rows[-1], down))
        # Where a side has four tiles in three registers, the other has one: each of the four is
        # multiplied before its register is loaded again.
        few_rows = self.down <= self.across
        read: set[tuple[str, int]] = set()
        pairs = [(i, j) for i in range(self.down) for j in range(self.across)]
        for i, j in pairs if few_rows else sorted(pairs, key=lambda p: (p[1], p[0])):
            if ("rhs", j) not in read:
                at = _moved(code, rhs, j * _BYTES)
                move_tile(code, "tileloadd64", registers.rhs(j), at, "%rhs_stride")
            if ("lhs", i) not in read:
                move_tile(code, "tileloadd64", registers.lhs(i), rows[i], "%lhs_stride")
            read |= {("lhs", i), ("rhs", j)}
            named = registers.block(i, j), registers.lhs(i), registers.rhs(j)
            multiply_tiles(code, self.block.multiply, *named)


def clear_tile(code: Writer, register: int) -> None:
    """Zero a tile register."""
    code.declare("declare void @llvm.x86.tilezero(i8 immarg)")
    code.do(f"call void @llvm.x86.tilezero(i8 {register})")


def move_tile(code: Writer, instruction: str, register: int, at: str, stride: str | int) -> None:
    """Load or store a tile register with a row stride in bytes: tileloadd64, tilestored64."""
    code.declare(f"declare void @llvm.x86.{instruction}(i8 immarg, ptr, i64)")
    code.do(f"call void @llvm.x86.{instruction}(i8 {register}, ptr {at}, i64 {stride})")


def multiply_tiles(code: Writer, instruction: str, sums: int, lhs: int, rhs: int) -> None:
    """Multiply-accumulate of tile registers."""
    code.declare(f"declare void @llvm.x86.{instruction}(i8 immarg, i8 immarg, i8 immarg)")
    code.do(f"call void @llvm.x86.{instruction}(i8 {sums}, i8 {lhs}, i8 {rhs})")


def _moved(code: Writer, pointer: str, far: str | int) -> str:
    """A pointer advanced by bytes."""
    if str(far) == "0":
        return pointer
    return code.let(f"getelementptr i8, ptr {pointer}, i64 {far}")
