"""The storage of elements in memory and in registers, by type.

A value is one vector: floats of up to 32 bits as `float`, f64 as `double`, integers as themselves
(those of 2 and 4 bits extended to `i8`), booleans as `i1`. A complex number is two vectors: its
real and imaginary parts.
"""

from __future__ import annotations

from typing import TypeAlias

from weft.emit.llvm.writer.narrow import decode, encode
from weft.emit.llvm.writer.vector import BITS, Vector, Vectors, suffix, vector_type
from weft.ir.types import DType

Held: TypeAlias = tuple[Vector, ...]  # one vector, or two for complex numbers


def register_kind(dtype: DType) -> str:
    """The LLVM register type of an element (of one part, if complex)."""
    match dtype.real.kind:
        case "bool":
            return "i1"
        case "float":
            return "double" if dtype.real.bits == 64 else "float"
        case _:
            return f"i{max(8, dtype.bits)}"


def is_narrow(dtype: DType) -> bool:
    """Whether elements are floats that are widened in registers."""
    return dtype.is_float and dtype.bits < 32


def memory_kind(dtype: DType) -> str:
    """The LLVM memory type of an element (of one part, if complex)."""
    if dtype.real.is_float and dtype.real.bits >= 32:
        return register_kind(dtype)
    return f"i{8 * dtype.numpy.itemsize}"


def parts(dtype: DType) -> int:
    """The number of vectors a value."""
    return 2 if dtype.is_complex else 1


def registers(dtype: DType, width: int) -> tuple[str, ...]:
    """The LLVM types of a value, for loop-carried values."""
    return (vector_type(register_kind(dtype), width),) * parts(dtype)


def fill(v: Vectors, value: complex | float | int | bool, dtype: DType) -> Held:
    """A constant in every lane, rounded or wrapped to its type."""
    kind = register_kind(dtype)
    held = dtype.numpy.type(value)
    if dtype.is_complex:
        return v.constant(float(held.real), kind), v.constant(float(held.imag), kind)
    if dtype.is_float:
        return (v.constant(float(held), kind),)
    return (v.constant(bool(held) if kind == "i1" else int(held), kind),)


# Memory


def load(v: Vectors, base: str, index: str | int, dtype: DType, mask: Vector | None = None) -> Held:
    """Load contiguous elements; 0 where the mask does not hold (no access there)."""
    kind = memory_kind(dtype)
    if dtype.is_complex:
        wide, pairs = _doubled(v, index)
        both = None if mask is None else _interleave(v, mask, mask)
        found = _read(wide, wide.at(base, pairs, kind), kind, both)
        return _every_other(v, found, 0), _every_other(v, found, 1)
    return (to_register(v, _read(v, v.at(base, index, kind), kind, mask), dtype),)


def load_splat(v: Vectors, base: str, index: str | int, dtype: DType) -> Held:
    """Broadcast one element to all lanes."""
    one = Vectors(v.code, 1)
    return tuple(v.splat(part) for part in load(one, base, index, dtype))


def gather(
    v: Vectors, base: str, indices: Vector, dtype: DType, mask: Vector | None = None
) -> Held:
    """Gather elements at a vector of i64 indices; 0 where the mask does not hold."""
    kind = memory_kind(dtype)
    if v.width == 1:
        return load(v, base, indices.text, dtype, mask)
    if dtype.is_complex:
        twice = v.binary("shl", indices, v.constant(1, "i64"))
        after = v.add(twice, v.constant(1, "i64"))
        return tuple(_gather(v, base, where, kind, mask) for where in (twice, after))
    return (to_register(v, _gather(v, base, indices, kind, mask), dtype),)


def store(
    v: Vectors,
    value: Held,
    base: str,
    index: str | int,
    dtype: DType,
    mask: Vector | None = None,
    *,
    streaming: bool = False,
) -> None:
    """Store contiguous elements, where the mask holds.

    `streaming` uses non-temporal stores; the address must be aligned to the vector, or to 64 bytes.
    """
    kind = memory_kind(dtype)
    if dtype.is_complex:
        wide, pairs = _doubled(v, index)
        both = None if mask is None else _interleave(v, mask, mask)
        # Pairs are one store of twice the width, not two with a stride.
        stored = _interleave(v, *value)
        _write(wide, stored, wide.at(base, pairs, kind), both, streaming=streaming)
        return
    stored = to_memory(v, value[0], dtype)
    _write(v, stored, v.at(base, index, kind), mask, streaming=streaming)


def scatter(
    v: Vectors, value: Held, base: str, indices: Vector, dtype: DType, mask: Vector | None = None
) -> None:
    """Scatter the lanes to i64 indices, where the mask holds; the last of equal indices wins."""
    kind = memory_kind(dtype)
    if v.width == 1:
        store(v, value, base, indices.text, dtype, mask)
    elif dtype.is_complex:
        twice = v.binary("shl", indices, v.constant(1, "i64"))
        after = v.add(twice, v.constant(1, "i64"))
        for part, where in zip(value, (twice, after), strict=True):
            _scatter(v, part, base, where, kind, mask)
    else:
        _scatter(v, to_memory(v, value[0], dtype), base, indices, kind, mask)


# Between memory and registers


def to_register(v: Vectors, stored: Vector, dtype: DType) -> Vector:
    """Memory to register representation. Not for complex numbers."""
    match dtype.kind:
        case "bool":
            # Any byte but 0 is true: arrays of other libraries need not hold 1.
            return v.compare("ne", stored, v.constant(0, stored.kind))
        case "float" if dtype.bits < 32:
            return decode(v, stored, dtype)
        case "int" | "uint" if dtype.bits < 8:
            return wrap(v, stored, dtype)
        case _:
            return stored


def to_memory(v: Vectors, held: Vector, dtype: DType) -> Vector:
    """Register to memory representation. Not for complex numbers."""
    match dtype.kind:
        case "bool":
            return v.cast("zext", held, "i8")
        case "float" if dtype.bits < 32:
            return encode(v, held, dtype)
        case "int" | "uint" if dtype.bits < 8:
            return v.binary("and", held, v.constant((1 << dtype.bits) - 1, held.kind))
        case _:
            return held


def wrap(v: Vectors, x: Vector, dtype: DType) -> Vector:
    """Integers wrapped to their type and extended to the register."""
    spare = x.bits - dtype.bits
    if spare == 0 or dtype.kind == "bool":
        return x
    if dtype.kind == "uint":
        return v.binary("and", x, v.constant((1 << dtype.bits) - 1, x.kind))
    amount = v.constant(spare, x.kind)
    return v.binary("ashr", v.binary("shl", x, amount), amount)


def _doubled(v: Vectors, index: str | int) -> tuple[Vectors, str | int]:
    """Vectors of both parts, and the index of the pair."""
    pairs = index * 2 if isinstance(index, int) else v.code.let(f"shl i64 {index}, 1")
    return Vectors(v.code, 2 * v.width), pairs


def _interleave(v: Vectors, a: Vector, b: Vector) -> Vector:
    """a0, b0, a1, b1, ..."""
    if a.width == 1:
        type = vector_type(a.kind, 2)
        one = v.code.let(f"insertelement {type} poison, {a.typed}, i64 0")
        return Vector(v.code.let(f"insertelement {type} {one}, {b.typed}, i64 1"), a.kind, 2)
    order = [lane for n in range(a.width) for lane in (n, a.width + n)]
    return v.shuffle(a, b, order)


def _every_other(v: Vectors, pairs: Vector, first: int) -> Vector:
    """Every second lane."""
    if v.width == 1:
        return Vector(v.code.let(f"extractelement {pairs.typed}, i64 {first}"), pairs.kind)
    return v.shuffle(pairs, pairs, range(first, pairs.width, 2))


def _read(v: Vectors, address: str, kind: str, mask: Vector | None) -> Vector:
    if mask is None:
        return v.load(address, kind)
    if v.width > 1:
        return v.load_masked(address, mask, kind)
    # LLVM has no masked load of a scalar; a branch around a load would split the block.
    one = _one_lane(v, mask)
    loaded = _call(
        v,
        f"<1 x {kind}>",
        f"llvm.masked.load.v1{suffix(kind, 1)}.p0",
        ("ptr", address),
        ("i32", str(_align(kind))),
        ("<1 x i1>", one),
        (f"<1 x {kind}>", "zeroinitializer"),
    )
    return Vector(v.code.let(f"extractelement <1 x {kind}> {loaded}, i64 0"), kind)


def _write(
    v: Vectors, value: Vector, address: str, mask: Vector | None, *, streaming: bool
) -> None:
    if mask is None:
        align = min(64, v.width * value.bits // 8) if streaming else None
        v.store(value, address, align, streaming=streaming)
    elif v.width > 1:
        v.store_masked(value, address, mask)
    else:
        with v.code.when(mask.text):
            v.store(value, address)


def _gather(v: Vectors, base: str, indices: Vector, kind: str, mask: Vector | None) -> Vector:
    type = vector_type(kind, v.width)
    gathered = _call(
        v,
        type,
        f"llvm.masked.gather.{suffix(kind, v.width)}.v{v.width}p0",
        (f"<{v.width} x ptr>", _addresses(v, base, indices, kind)),
        ("i32", str(_align(kind))),
        (f"<{v.width} x i1>", _mask_text(v, mask)),
        (type, "zeroinitializer"),
    )
    return Vector(gathered, kind, v.width)


def _scatter(
    v: Vectors, value: Vector, base: str, indices: Vector, kind: str, mask: Vector | None
) -> None:
    name = f"llvm.masked.scatter.{suffix(kind, v.width)}.v{v.width}p0"
    lanes = f"<{v.width} x i1>"
    v.code.declare(f"declare void @{name}({value.type}, <{v.width} x ptr>, i32 immarg, {lanes})")
    places = f"<{v.width} x ptr> {_addresses(v, base, indices, kind)}"
    given = f"{value.typed}, {places}, i32 {_align(kind)}, {lanes} {_mask_text(v, mask)}"
    v.code.do(f"call void @{name}({given})")


def _addresses(v: Vectors, base: str, indices: Vector, kind: str) -> str:
    return v.code.let(f"getelementptr {kind}, ptr {base}, {indices.typed}")


def _mask_text(v: Vectors, mask: Vector | None) -> str:
    return "splat (i1 true)" if mask is None else mask.text


def _one_lane(v: Vectors, mask: Vector) -> str:
    return v.code.let(f"insertelement <1 x i1> poison, i1 {mask.text}, i64 0")


def _align(kind: str) -> int:
    return max(1, BITS[kind] // 8)


def _call(v: Vectors, type: str, name: str, *args: tuple[str, str]) -> str:
    """A call of a memory intrinsic, whose alignment is an immediate."""
    taken = ", ".join("i32 immarg" if t == "i32" else t for t, _ in args)
    v.code.declare(f"declare {type} @{name}({taken})")
    given = ", ".join(f"{t} {text}" for t, text in args)
    return v.code.let(f"call {type} @{name}({given})")
