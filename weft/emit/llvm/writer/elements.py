"""Elements in memory as raw bits: single ones, contiguous runs, fills."""

from __future__ import annotations

from weft.emit.llvm.writer.code import Writer
from weft.emit.llvm.writer.nest import times, vectors_and_rest
from weft.kernels.kernel import Operand

VECTOR = 64  # bytes moved by one instruction


def bits_of(operand: Operand) -> str:
    """The integer type of an element's size."""
    return f"i{8 * operand.dtype.numpy.itemsize}"


def bytes_of(operand: Operand) -> int:
    """The bytes of an element."""
    return int(operand.dtype.numpy.itemsize)


def address(code: Writer, base: str, offset: str | int, kind: str) -> str:
    """The address of an element."""
    return (
        base if str(offset) == "0" else code.let(f"getelementptr {kind}, ptr {base}, i64 {offset}")
    )


def align(kind: str) -> int:
    """The alignment of every buffer: that of its elements, as in numpy."""
    return min(int(kind[1:]) // 8, 8)


def take(code: Writer, base: str, offset: str | int, kind: str) -> str:
    """Load an element."""
    place = address(code, base, offset, kind)
    return code.let(f"load {kind}, ptr {place}, align {align(kind)}")


def put(code: Writer, value: str, base: str, offset: str | int, kind: str) -> None:
    """Store an element."""
    place = address(code, base, offset, kind)
    code.do(f"store {kind} {value}, ptr {place}, align {align(kind)}")


def copy_run(code: Writer, target: str, source: str, count: str | int, kind: str) -> None:
    """Copy contiguous elements."""
    size = int(kind[1:]) // 8
    length = str(count * size) if isinstance(count, int) else times(code, count, size)
    code.declare("declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)")
    where = f"ptr align {align(kind)}"
    code.do(
        f"call void @llvm.memcpy.p0.p0.i64({where} {target}, {where} {source}, i64 {length}, i1 0)"
    )


def fill_run(code: Writer, base: str, begin: str, end: str, value: str, kind: str) -> None:
    """Fill elements begin..end of a buffer with one value."""
    width = max(1, VECTOR * 8 // int(kind[1:]))
    type = f"<{width} x {kind}>"
    one = code.let(f"insertelement {type} poison, {kind} {value}, i64 0")
    zero = f"<{width} x i32> zeroinitializer"
    many = code.let(f"shufflevector {type} {one}, {type} poison, {zero}")
    for step, index in vectors_and_rest(code, begin, end, width):
        if step == 1:
            put(code, value, base, index, kind)
        else:
            place = address(code, base, index, kind)
            code.do(f"store {type} {many}, ptr {place}, align {align(kind)}")


def stream_run(code: Writer, target: str, source: str, count: str | int, kind: str) -> None:
    """Copy contiguous elements with non-temporal stores, for data larger than the caches."""
    size = int(kind[1:]) // 8
    length = str(count * size) if isinstance(count, int) else times(code, count, size)
    place = code.let(f"ptrtoint ptr {target} to i64")
    # Non-temporal vector stores have to be aligned: the head is copied as bytes.
    away = code.let(f"and i64 {code.let(f'sub i64 0, {place}')}, {VECTOR - 1}")
    head = code.call("i64", "llvm.umin.i64", ("i64", away), ("i64", length))
    with code.when(code.let(f"icmp ne i64 {head}, 0")):
        copy_run(code, target, source, head, "i8")
    left = code.let(f"sub nsw i64 {length}, {head}")
    whole = code.let(f"add nsw i64 {head}, {code.let(f'and i64 {left}, {-VECTOR}')}")
    code.declare("!0 = !{i32 1}")
    type = f"<{VECTOR // 4} x i32>"
    with code.loop(head, whole, VECTOR) as loop:
        value = code.let(f"load {type}, ptr {address(code, source, loop.index, 'i8')}, align 1")
        there = address(code, target, loop.index, "i8")
        code.do(f"store {type} {value}, ptr {there}, align {VECTOR}, !nontemporal !0")
    tail = code.let(f"sub nsw i64 {length}, {whole}")
    with code.when(code.let(f"icmp ne i64 {tail}, 0")):
        rest = address(code, target, whole, "i8"), address(code, source, whole, "i8")
        copy_run(code, *rest, tail, "i8")
