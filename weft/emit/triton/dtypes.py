"""Element types in Triton: of pointers, in memory and in registers.

Floats of fewer than 32 bits are computed in f32, as in every target, and booleans are bytes in
memory.
"""

from __future__ import annotations

from weft.ir.types import DType

# By element type: the type of a pointer in signatures, and the element type in memory.
_STORED = {
    "i1": ("*u8", "tl.uint8"),
    "f8E4M3FN": ("*fp8e4nv", "tl.float8e4nv"),
    "f8E5M2": ("*fp8e5", "tl.float8e5"),
    "bf16": ("*bf16", "tl.bfloat16"),
    "f16": ("*fp16", "tl.float16"),
    "f32": ("*fp32", "tl.float32"),
    "f64": ("*fp64", "tl.float64"),
    **{f"i{n}": (f"*i{n}", f"tl.int{n}") for n in (8, 16, 32, 64)},
    **{f"ui{n}": (f"*u{n}", f"tl.uint{n}") for n in (8, 16, 32, 64)},
    "index": ("*i64", "tl.int64"),
}
KNOWN = frozenset(_STORED)


def pointer(dtype: DType) -> str:
    """The pointer type of an operand, as in a signature."""
    return _STORED[dtype.name][0]


def stored(dtype: DType) -> str:
    """The element type in memory."""
    return _STORED[dtype.name][1]


def computed(dtype: DType) -> str:
    """The element type in registers."""
    if dtype.kind == "bool":
        return "tl.int1"
    return "tl.float32" if dtype.is_float and dtype.bits < 32 else stored(dtype)


def refuses(*dtypes: DType) -> str | None:
    """Why elements of these types cannot be in registers, or None if they can."""
    return next((f"of {dtype}" for dtype in dtypes if dtype.name not in KNOWN), None)


def rounded(value: str, dtype: DType) -> str:
    """A value in registers, rounded to a narrow float type as its conversion rounds.

    Triton saturates conversions to 8 bits; beyond the largest number they are NaN or infinite.
    """
    if dtype.name == "f8E4M3FN":
        return f"tl.where(tl.abs({value}) > 464.0, float('nan'), {value}).to(tl.float8e4nv)"
    if dtype.name == "f8E5M2":
        large = f"tl.where({value} < 0.0, float('-inf'), float('inf'))"
        return f"tl.where(tl.abs({value}) >= 61440.0, {large}, {value}).to(tl.float8e5)"
    return f"{value}.to({stored(dtype)})"


def to_memory(value: str, dtype: DType) -> str:
    """A value in registers as it is stored."""
    if dtype.kind == "bool":
        return f"{value}.to(tl.uint8)"
    return rounded(value, dtype) if dtype.is_float and dtype.bits < 32 else value


def literal(value: bool | int | float | complex, dtype: DType) -> str:
    """A constant in registers, without dims."""
    assert not isinstance(value, complex), "no kernel computes complex numbers"
    number = float(value) if dtype.is_float else int(value)
    text = repr(number)
    if isinstance(number, float) and text.strip("-") in ("inf", "nan"):
        text = f"float('{text}')"
    return f"tl.full([], {text}, {computed(dtype)})"
