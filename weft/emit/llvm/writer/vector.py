"""Vectors in LLVM IR: arithmetic, comparisons, memory. Width 1 means scalars."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from weft.emit.llvm.writer.code import Writer
from weft.records import dataclass

BITS = {"i1": 1, "i8": 8, "i16": 16, "i32": 32, "i64": 64, "half": 16, "bfloat": 16}
BITS |= {"float": 32, "double": 64}
SUFFIX = {"half": "f16", "bfloat": "bf16", "float": "f32", "double": "f64"}


@dataclass(frozen=True, slots=True)
class Vector:
    """An LLVM value: its text, element type, and lane count."""

    text: str
    kind: str  # i1, i8, ..., float, double
    width: int = 1

    @property
    def type(self) -> str:
        """The LLVM type."""
        return vector_type(self.kind, self.width)

    @property
    def typed(self) -> str:
        """The type and the value, as an operand."""
        return f"{self.type} {self.text}"

    @property
    def is_float(self) -> bool:
        """Whether the elements are floating-point numbers."""
        return self.kind in SUFFIX

    @property
    def bits(self) -> int:
        """The bits of an element."""
        return BITS[self.kind]


def vector_type(kind: str, width: int) -> str:
    """The LLVM type of so many elements."""
    return kind if width == 1 else f"<{width} x {kind}>"


def suffix(kind: str, width: int) -> str:
    """The type suffix of intrinsics: v16f32, i32."""
    name = SUFFIX.get(kind, kind)
    return name if width == 1 else f"v{width}{name}"


def float_text(value: float, kind: str = "float") -> str:
    """A floating-point constant, exactly."""
    if kind == "float":
        # LLVM writes f32 constants as the bits of a double, and refuses one that f32 cannot
        # represent.
        (value,) = struct.unpack("f", struct.pack("f", value))
    (pattern,) = struct.unpack("Q", struct.pack("d", value))
    return f"0x{pattern:016X}"


def _only_lane(mask: Vector) -> int | None:
    """The lane of a constant one-lane mask."""
    if not mask.text.startswith("<") or mask.text.count("true") != 1:
        return None
    return mask.text.split(", ").index(next(t for t in mask.text.split(", ") if "true" in t))


class Vectors:
    """Vector instructions of one width in one function."""

    def __init__(self, code: Writer, width: int) -> None:
        self.code = code
        self.width = width

    # Constants

    def constant(self, value: float | int | bool, kind: str = "float") -> Vector:
        """A splat constant."""
        text = float_text(float(value), kind) if kind in SUFFIX else str(int(value))
        if self.width > 1:
            text = f"splat ({kind} {text})"
        return Vector(text, kind, self.width)

    def splat(self, scalar: Vector) -> Vector:
        """Broadcast a scalar."""
        if self.width == 1:
            return scalar
        type = vector_type(scalar.kind, self.width)
        one = self.code.let(f"insertelement {type} poison, {scalar.typed}, i64 0")
        zero = f"<{self.width} x i32> zeroinitializer"
        return self._emit(
            f"shufflevector {type} {one}, {type} poison, {zero}", scalar.kind, self.width
        )

    def lanes(self, kind: str = "i64") -> Vector:
        """0, 1, 2, ... in the lanes."""
        if self.width == 1:
            return self.constant(0, kind)
        listed = ", ".join(f"{kind} {n}" for n in range(self.width))
        return Vector(f"<{listed}>", kind, self.width)

    # Arithmetic

    def binary(self, instruction: str, a: Vector, b: Vector) -> Vector:
        """A binary instruction: fadd, mul, and, shl, ..."""
        return self._emit(f"{instruction} {a.type} {a.text}, {b.text}", a.kind, a.width)

    def add(self, a: Vector, b: Vector) -> Vector:
        return self.binary("fadd" if a.is_float else "add", a, b)

    def sub(self, a: Vector, b: Vector) -> Vector:
        return self.binary("fsub" if a.is_float else "sub", a, b)

    def mul(self, a: Vector, b: Vector) -> Vector:
        return self.binary("fmul" if a.is_float else "mul", a, b)

    def div(self, a: Vector, b: Vector) -> Vector:
        """A floating-point quotient."""
        return self.binary("fdiv", a, b)

    def fma(self, a: Vector, b: Vector, c: Vector) -> Vector:
        """a * b + c, rounded once."""
        return self.intrinsic("fma", a, b, c)

    def neg(self, a: Vector) -> Vector:
        if a.is_float:
            return self._emit(f"fneg {a.typed}", a.kind, a.width)
        return self.binary("sub", self.constant(0, a.kind), a)

    def maximum(self, a: Vector, b: Vector) -> Vector:
        """The maximum; NaN propagates, and +0 is above -0."""
        return self.intrinsic("maximum", a, b)

    def minimum(self, a: Vector, b: Vector) -> Vector:
        """The minimum; NaN propagates, and -0 is below +0."""
        return self.intrinsic("minimum", a, b)

    def intrinsic(self, name: str, *args: Vector, flags: str = "") -> Vector:
        """An LLVM intrinsic whose arguments and result have one type: fma, sqrt, fabs, floor."""
        first = args[0]
        full = f"llvm.{name}.{suffix(first.kind, first.width)}"
        text = self.code.call(first.type, full, *((a.type, a.text) for a in args), flags=flags)
        return Vector(text, first.kind, first.width)

    def compare(self, how: str, a: Vector, b: Vector) -> Vector:
        """A comparison: oeq, olt, une, uno, ... of floats; eq, slt, ult, ... of integers."""
        instruction = "fcmp" if a.is_float else "icmp"
        return self._emit(f"{instruction} {how} {a.type} {a.text}, {b.text}", "i1", a.width)

    def select(self, condition: Vector, yes: Vector, no: Vector) -> Vector:
        return self._emit(f"select {condition.typed}, {yes.typed}, {no.typed}", yes.kind, yes.width)

    def cast(self, instruction: str, a: Vector, kind: str) -> Vector:
        """A conversion: bitcast, zext, sext, trunc, sitofp, fptosi, fpext, fptrunc, ..."""
        if kind == a.kind:
            return a
        to = vector_type(kind, a.width)
        return self._emit(f"{instruction} {a.typed} to {to}", kind, a.width)

    def shuffle(self, a: Vector, b: Vector, order: Sequence[int]) -> Vector:
        """A shuffle of two vectors' lanes, numbered through."""
        lanes = ", ".join(f"i32 {lane}" for lane in order)
        text = f"shufflevector {a.typed}, {b.typed}, <{len(order)} x i32> <{lanes}>"
        return self._emit(text, a.kind, len(order))

    def total(self, name: str, a: Vector, flags: str = "") -> Vector:
        """A horizontal reduction: add, mul, smax, umin, and, or, fmaximum, fmax, ..."""
        if a.width == 1:
            return a
        full = f"llvm.vector.reduce.{name}.{suffix(a.kind, a.width)}"
        return Vector(self.code.call(a.kind, full, (a.type, a.text), flags=flags), a.kind)

    def total_sum(self, a: Vector) -> Vector:
        """The sum of all lanes, reassociated."""
        if a.width == 1:
            return a
        if not a.is_float:
            return self.total("add", a)
        full = f"llvm.vector.reduce.fadd.{suffix(a.kind, a.width)}"
        # -0.0 is the identity of addition: with 0.0 a sum of -0.0 would lose its sign. Without
        # `reassoc` LLVM adds lane by lane, in order.
        args = ((a.kind, "-0.0"), (a.type, a.text))
        return Vector(self.code.call(a.kind, full, *args, flags="reassoc"), a.kind)

    def transpose(self, rows: Sequence[Vector]) -> list[Vector]:
        """Transpose a square of vectors, by interleaving halves log2(n) times."""
        assert len(rows) == self.width, "a square is transposed"
        half = self.width // 2
        columns = list(rows)
        for _ in range(self.width.bit_length() - 1):
            pairs = [(columns[n], columns[n + half]) for n in range(half)]
            columns = [self._interleaved(a, b, low) for a, b in pairs for low in (0, half)]
        return columns

    def _interleaved(self, a: Vector, b: Vector, first: int) -> Vector:
        lanes = [n for k in range(first, first + self.width // 2) for n in (k, self.width + k)]
        return self.shuffle(a, b, lanes)

    # Memory

    def at(self, base: str, index: str | int, kind: str) -> str:
        """The address of an element."""
        stored = "i8" if kind == "i1" else kind
        return self.code.let(f"getelementptr {stored}, ptr {base}, i64 {index}")

    def load(self, address: str, kind: str, align: int | None = None) -> Vector:
        """Load contiguous elements."""
        align = align or max(1, BITS[kind] // 8)
        type = vector_type(kind, self.width)
        return self._emit(f"load {type}, ptr {address}, align {align}", kind, self.width)

    def load_masked(self, address: str, mask: Vector, kind: str) -> Vector:
        """Masked load; 0 elsewhere (no access there)."""
        type = vector_type(kind, self.width)
        name = f"llvm.masked.load.{suffix(kind, self.width)}.p0"
        align = max(1, BITS[kind] // 8)
        self.code.declare(f"declare {type} @{name}(ptr, i32 immarg, <{self.width} x i1>, {type})")
        given = f"ptr {address}, i32 {align}, {mask.typed}, {type} zeroinitializer"
        return self._emit(f"call {type} @{name}({given})", kind, self.width)

    def store(
        self, value: Vector, address: str, align: int | None = None, *, streaming: bool = False
    ) -> None:
        """Store contiguous elements; `streaming` is non-temporal (the address is aligned)."""
        align = align or max(1, value.bits // 8)
        hint = ", !nontemporal !0" if streaming else ""
        if streaming:
            self.code.declare("!0 = !{i32 1}")
        self.code.do(f"store {value.typed}, ptr {address}, align {align}{hint}")

    def store_masked(self, value: Vector, address: str, mask: Vector) -> None:
        """Masked store."""
        if (lane := _only_lane(mask)) is not None:
            # LLVM 22 miscompiles a narrowing store through a mask of one lane: it writes too much.
            one = self.code.let(f"extractelement {value.typed}, i64 {lane}")
            self.store(Vector(one, value.kind), self.at(address, lane, value.kind))
            return
        name = f"llvm.masked.store.{suffix(value.kind, value.width)}.p0"
        self.code.declare(
            f"declare void @{name}({value.type}, ptr, i32 immarg, <{value.width} x i1>)"
        )
        align = max(1, value.bits // 8)
        self.code.do(f"call void @{name}({value.typed}, ptr {address}, i32 {align}, {mask.typed})")

    def first(self, count: str) -> Vector:
        """The mask of lanes below a number (an i64)."""
        if count.isdecimal():
            lanes = ", ".join(
                f"i1 {'true' if n < int(count) else 'false'}" for n in range(self.width)
            )
            return Vector(f"<{lanes}>" if self.width > 1 else lanes[3:], "i1", self.width)
        limit = self.splat(Vector(count, "i64"))
        return self.compare("slt", self.lanes(), limit)

    def _emit(self, text: str, kind: str, width: int) -> Vector:
        return Vector(self.code.let(text), kind, width)
