"""Supplied functions: called by name in texts, with bodies that depend on the processor.

Emitted text is portable. An operation that is one instruction on some processors and several on
others is a call in it; the compiler adds the body, which is inlined.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

from weft.emit.llvm.math.polynomial import FLOAT_BITS, float_of
from weft.emit.llvm.writer.code import Writer
from weft.emit.llvm.writer.vector import Vector, Vectors, suffix, vector_type

_DECLARED = re.compile(r"^declare \S[^@]* @weft\.(\w+)\.(?:v(\d+))?(f32|f64)\(.*\)$", re.MULTILINE)
_KINDS = {"f32": "float", "f64": "double"}
_REGISTER = {"float": 16, "double": 8}  # lanes of a 512-bit register
_LIFT = {"float": 64, "double": 128}  # the exponent that normalizes subnormals
_AS_SET = "i32 4"  # rounding mode: as in MXCSR
_SUBNORMAL = "i32 32"  # vfpclass bit

SuppliedBody: TypeAlias = Callable[..., Vector]  # (v, *vectors) -> vector


class Features(Protocol):
    """A processor's features."""

    def has(self, feature: str) -> bool:
        """Whether a feature is enabled."""
        ...


# Calls in texts


def scale(v: Vectors, x: Vector, n: Vector) -> Vector:
    """x * 2^n, rounded once; n is an integral float, or NaN if x is.

    n exceeds the largest exponent by at most 1, and the exponent of the least subnormal by at most
    a few.
    """
    return _called(v, "scale", x, n)


def scale_normal(v: Vectors, x: Vector, n: Vector) -> Vector:
    """The same where 2^n is normal, else 0."""
    return _called(v, "scale_normal", x, n)


def larger(v: Vectors, a: Vector, b: Vector) -> Vector:
    """The maximum, +0 above -0; with a NaN, either operand."""
    return _called(v, "larger", a, b)


def smaller(v: Vectors, a: Vector, b: Vector) -> Vector:
    """The minimum, -0 below +0; with a NaN, either operand."""
    return _called(v, "smaller", a, b)


def estimate(v: Vectors, x: Vector) -> Vector:
    """An estimate of 1 / x for normal x, with at least half of the mantissa's bits.

    Without excess precision it is the true quotient, so that results do not depend on vector width.
    """
    if not v.code.excess_precision:
        return v.div(v.constant(1.0, x.kind), x)
    return _called(v, "estimate", x)


def estimate_rsqrt(v: Vectors, x: Vector) -> Vector:
    """An estimate of 1 / sqrt(x), under the same conditions; exact for double."""
    if not v.code.excess_precision:
        return _estimate_rsqrt_anywhere(v, x)
    return _called(v, "estimate_rsqrt", x)


def bf16_bits(v: Vectors, x: Vector) -> Vector:
    """f32 rounded to nearest-even bf16, as integers."""
    return _called(v, "bf16", x, kind="i16")


def _called(v: Vectors, name: str, *args: Vector, kind: str = "") -> Vector:
    first = args[0]
    kind = kind or first.kind
    full = f"weft.{name}.{suffix(first.kind, first.width)}"
    type = vector_type(kind, first.width)
    return Vector(v.code.call(type, full, *((a.type, a.text) for a in args)), kind, first.width)


# Bodies by the compiler


def supplied(text: str, processor: Features) -> str:
    """The text with a body for every supplied function that it declares."""
    declarations = list(_DECLARED.finditer(text))
    if not declarations:
        return text
    code = Writer("", ())
    bodies = [
        _function(code, match[1], _KINDS[match[3]], int(match[2] or 1), processor)
        for match in declarations
    ]
    # A kernel may use an intrinsic itself: LLVM takes each declaration once.
    present = {*text.splitlines()}
    missing = [line for line in code.declared if line not in present]
    return "\n".join([*missing, _DECLARED.sub("", text), *bodies])


def _function(code: Writer, name: str, kind: str, width: int, processor: Features) -> str:
    """The text of one function; its declarations stay with the code."""
    code.lines.clear()
    code.block = "entry"
    arity, features, registers, quick, anywhere = _BODIES[name]
    whole = width % (registers * _REGISTER[kind]) == 0
    body = quick if whole and all(map(processor.has, features)) else anywhere
    args = [Vector(f"%x{n}", kind, width) for n in range(arity)]
    made = body(Vectors(code, width), *args)
    given = ", ".join(arg.typed for arg in args)
    head = f"define internal {made.type} @weft.{name}.{suffix(kind, width)}({given})"
    lines = [f"{head} alwaysinline {{", "entry:", *code.lines, f"  ret {made.typed}", "}"]
    return "\n".join(lines) + "\n"


def _scale_anywhere(v: Vectors, x: Vector, n: Vector) -> Vector:
    """Two factors for 2^n: half of it, or much more where it is subnormal, and then the rest."""
    form, lift = FLOAT_BITS[x.kind], _LIFT[x.kind]
    # fptosi of NaN is poison; freeze makes it some integer, and the result is NaN anyway.
    whole = v.cast("fptosi", n, form.integer)
    whole = Vector(v.code.let(f"freeze {whole.typed}"), whole.kind, whole.width)
    # Near the subnormals: the first factor is lifted into the normal range, and the second one, a
    # constant power, rounds once.
    low = v.compare("slt", whole, v.constant(4 - form.bias, form.integer))
    plain, lifted = (v.constant(form.bias + m, form.integer) for m in (-1, lift))
    biased = v.add(whole, v.select(low, lifted, plain))
    bits = v.binary("shl", biased, v.constant(form.mantissa, form.integer))
    left, half = (v.constant(2.0**m, x.kind) for m in (-lift, 1))
    return v.mul(v.mul(x, float_of(v, bits)), v.select(low, left, half))


def _scale_normal_anywhere(v: Vectors, x: Vector, n: Vector) -> Vector:
    some = v.compare("uge", n, v.constant(_LEAST_NORMAL[n.kind], n.kind))
    return v.select(some, _scale_anywhere(v, x, n), v.constant(0.0, x.kind))


def _estimate_anywhere(v: Vectors, x: Vector) -> Vector:
    return v.div(v.constant(1.0, x.kind), x)


def _estimate_rsqrt_anywhere(v: Vectors, x: Vector) -> Vector:
    return _estimate_anywhere(v, v.intrinsic("sqrt", x))


def _larger_anywhere(v: Vectors, a: Vector, b: Vector) -> Vector:
    return v.maximum(a, b)


def _smaller_anywhere(v: Vectors, a: Vector, b: Vector) -> Vector:
    return v.minimum(a, b)


def _scale_registers(v: Vectors, x: Vector, n: Vector) -> Vector:
    """Lanes that are 0 are masked out: a subnormal assist there takes a hundred times as long."""
    some = v.compare("uge", n, v.constant(_LEAST[n.kind], n.kind))
    return _by_register(v, "scalef", "", x, n, some)


def _scale_normal_registers(v: Vectors, x: Vector, n: Vector) -> Vector:
    some = v.compare("uge", n, v.constant(_LEAST_NORMAL[n.kind], n.kind))
    return _by_register(v, "scalef", "", x, n, some)


def _larger_registers(v: Vectors, a: Vector, b: Vector) -> Vector:
    # vmaxps alone returns its second operand for zeros of both signs, so it cannot order -0 and +0.
    return _by_register(v, "range", "i32 5, ", a, b)  # vrange: the maximum, with its own sign


def _smaller_registers(v: Vectors, a: Vector, b: Vector) -> Vector:
    return _by_register(v, "range", "i32 4, ", a, b)


def _estimate_registers(v: Vectors, x: Vector) -> Vector:
    """An estimate of 14 bits, fewer than half of a double's."""
    return _estimate_anywhere(v, x) if x.kind == "double" else _estimated(v, "rcp14", x)


def _estimate_rsqrt_registers(v: Vectors, x: Vector) -> Vector:
    return _estimate_rsqrt_anywhere(v, x) if x.kind == "double" else _estimated(v, "rsqrt14", x)


def _estimated(v: Vectors, name: str, x: Vector) -> Vector:
    """An instruction that estimates to 14 bits, on each register."""
    type = vector_type(x.kind, _REGISTER[x.kind])
    full = f"llvm.x86.avx512.{name}.ps.512"
    v.code.declare(f"declare {type} @{full}({type}, {type}, i16)")
    estimates = [
        v.code.let(f"call {type} @{full}({part.typed}, {type} zeroinitializer, i16 -1)")
        for part in _parts(v, x)
    ]
    return _concatenate(v, [Vector(text, x.kind, _REGISTER[x.kind]) for text in estimates])


def _bf16_anywhere(v: Vectors, x: Vector) -> Vector:
    """The upper half after adding just less than half a unit, or exactly half to odd ones."""
    bits = v.cast("bitcast", x, "i32")
    last = v.binary("and", bits, v.constant(0x10000, "i32"))
    even = v.compare("eq", last, v.constant(0, "i32"))
    half = v.select(even, v.constant(0x7FFF, "i32"), v.constant(0x8000, "i32"))
    # Adding half a unit to a NaN could carry into the exponent and give infinity; a NaN is quieted.
    quiet = v.binary("or", bits, v.constant(0x400000, "i32"))
    return _upper_halves(v, v.select(v.compare("uno", x, x), quiet, v.add(bits, half)))


def _upper_halves(v: Vectors, x: Vector) -> Vector:
    """The upper 16 bits of each 32: every second lane, one instruction."""
    if x.width == 1:
        return v.cast("trunc", v.binary("lshr", x, v.constant(16, "i32")), "i16")
    halves = Vector(v.code.let(f"bitcast {x.typed} to <{2 * x.width} x i16>"), "i16", 2 * x.width)
    return v.shuffle(halves, halves, range(1, 2 * x.width, 2))


def _bf16_registers(v: Vectors, x: Vector) -> Vector:
    """The processor's conversion, which flushes subnormals, where there are none."""
    code, parts = v.code, _parts(v, x)
    test, lanes = "llvm.x86.avx512.fpclass.ps.512", vector_type("i1", parts[0].width)
    code.declare(f"declare {lanes} @{test}({parts[0].type}, i32 immarg)")
    one = Vectors(code, parts[0].width)
    some = [
        Vector(code.let(f"call {lanes} @{test}({p.typed}, {_SUBNORMAL})"), "i1", one.width)
        for p in parts
    ]
    # One branch for the whole vector: subnormals are rare, and vcvtne2ps2bf16 flushes them whatever
    # MXCSR says.
    seen = one.total("or", functools.reduce(lambda a, b: one.binary("or", a, b), some))
    # Tells LLVM's block placement to keep the slow path out of line.
    code.declare('!1 = !{!"branch_weights", i32 1, i32 1000}')
    code.do(f"br i1 {seen.text}, label %slow, label %fast, !prof !1")
    code.start("fast")
    quick = _rounded_pairs(v, parts)
    code.do("br label %after")
    code.start("slow")
    exact = _bf16_anywhere(v, x)
    code.do("br label %after")
    code.start("after")
    phi = f"phi {quick.type} [{quick.text}, %fast], [{exact.text}, %slow]"
    return Vector(code.let(phi), "i16", x.width)


def _rounded_pairs(v: Vectors, parts: Sequence[Vector]) -> Vector:
    """Two f32 registers at a time as one of bf16."""
    type, width = parts[0].type, 2 * parts[0].width
    full, rounded_type = "llvm.x86.avx512bf16.cvtne2ps2bf16.512", vector_type("bfloat", width)
    v.code.declare(f"declare {rounded_type} @{full}({type}, {type})")
    vectors: list[Vector] = []
    for low, high in zip(parts[::2], parts[1::2], strict=True):
        rounded = Vector(
            v.code.let(f"call {rounded_type} @{full}({high.typed}, {low.typed})"), "bfloat", width
        )
        vectors.append(v.cast("bitcast", rounded, "i16"))
    return _concatenate(v, vectors)


def _by_register(
    v: Vectors, name: str, how: str, a: Vector, b: Vector, some: Vector | None = None
) -> Vector:
    """An AVX-512 instruction on each register of two vectors; masked-out lanes are 0."""
    lanes = _REGISTER[a.kind]
    type = vector_type(a.kind, lanes)
    full = f"llvm.x86.avx512.mask.{name}.p{a.kind[0] if a.kind == 'double' else 's'}.512"
    way = "i32 immarg, " if how else ""
    v.code.declare(f"declare {type} @{full}({type}, {type}, {way}{type}, i{lanes}, i32 immarg)")
    registers = []
    for n, (one, two) in enumerate(zip(_parts(v, a), _parts(v, b), strict=True)):
        mask = "-1" if some is None else _mask(v, some, n * lanes, lanes)
        rest = f"{how}{type} zeroinitializer, i{lanes} {mask}, {_AS_SET}"
        registers.append(v.code.let(f"call {type} @{full}({one.typed}, {two.typed}, {rest})"))
    return _concatenate(v, [Vector(text, a.kind, lanes) for text in registers])


def _mask(v: Vectors, some: Vector, begin: int, lanes: int) -> str:
    """Some lanes of a comparison as a mask register."""
    part = some if some.width == lanes else v.shuffle(some, some, range(begin, begin + lanes))
    return v.code.let(f"bitcast {part.typed} to i{lanes}")


def _parts(v: Vectors, x: Vector) -> list[Vector]:
    """The registers of a vector."""
    lanes = _REGISTER[x.kind]
    if x.width == lanes:
        return [x]
    return [v.shuffle(x, x, range(n, n + lanes)) for n in range(0, x.width, lanes)]


def _concatenate(v: Vectors, parts: Sequence[Vector]) -> Vector:
    """Vectors concatenated."""
    if len(parts) == 1:
        return parts[0]
    half = len(parts) // 2
    low, high = _concatenate(v, parts[:half]), _concatenate(v, parts[half:])
    return v.shuffle(low, high, range(low.width + high.width))


# The least exponents for which a number below 2 may round to a subnormal.
_LEAST = {"float": -150.0, "double": -1075.0}
_LEAST_NORMAL = {"float": -126.0, "double": -1022.0}
_AVX512 = ("avx512f", "avx512dq")
# By name: the number of arguments, the features and register width of the fast body, and both
# bodies.
_BODIES: dict[str, tuple[int, tuple[str, ...], int, SuppliedBody, SuppliedBody]] = {
    "scale": (2, _AVX512, 1, _scale_registers, _scale_anywhere),
    "scale_normal": (2, _AVX512, 1, _scale_normal_registers, _scale_normal_anywhere),
    "larger": (2, _AVX512, 1, _larger_registers, _larger_anywhere),
    "smaller": (2, _AVX512, 1, _smaller_registers, _smaller_anywhere),
    "estimate": (1, _AVX512, 1, _estimate_registers, _estimate_anywhere),
    "estimate_rsqrt": (1, _AVX512, 1, _estimate_rsqrt_registers, _estimate_rsqrt_anywhere),
    "bf16": (1, (*_AVX512, "avx512bf16"), 2, _bf16_registers, _bf16_anywhere),
}
