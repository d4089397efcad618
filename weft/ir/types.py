"""Types: element types, dims, tensors, tokens, tuples and futures, each interned."""

from __future__ import annotations

import importlib.util
import math
from dataclasses import field
from functools import cache
from typing import Any, ClassVar, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from weft.errors import Unsupported, WeftError
from weft.ir.intern import InternTable
from weft.records import dataclass

Array: TypeAlias = npt.NDArray[Any]
DtypeKind = Literal["bool", "int", "uint", "float", "complex"]


@dataclass(frozen=True, slots=True, eq=False)
class DType:
    """An element type: its MLIR name, its kind, its width, and the numpy type that holds it.

    `ml_dtypes` is imported on the first use of one of its types: most programs use none.
    """

    name: str
    kind: DtypeKind
    bits: int
    numpy: np.dtype[Any] = field(init=False)

    def __getattr__(self, name: str) -> Any:
        """The numpy type, computed on first access."""
        if name != "numpy":
            raise AttributeError(f"{self!r} has no attribute {name!r}")
        object.__setattr__(self, "numpy", _numpy(self))
        return self.numpy

    def __reduce__(self) -> tuple[object, ...]:
        return dtype, (self.name,)

    @property
    def is_integer(self) -> bool:
        """Signed or unsigned integer, booleans not counted."""
        return self.kind in ("int", "uint")

    @property
    def is_float(self) -> bool:
        """A real floating-point type of any width."""
        return self.kind == "float"

    @property
    def is_complex(self) -> bool:
        """A pair of floats."""
        return self.kind == "complex"

    @property
    def real(self) -> DType:
        """The type of a complex number's parts; any other type itself."""
        return DTYPES[self.name[8:-1]] if self.is_complex else self

    @property
    def mantissa(self) -> int:
        """Stored mantissa bits of a float (of its parts, for a complex)."""
        return int(finfo(self.real).nmant)

    @property
    def limits(self) -> tuple[int | float, int | float]:
        """The least and the greatest value; infinities for types that have them."""
        if self.kind == "bool":
            return False, True
        if self.is_integer:
            spare = self.bits - (self.kind == "int")
            return (-(1 << spare) if self.kind == "int" else 0), (1 << spare) - 1
        held = self.real.numpy
        # Types without infinities (f8E4M3FN, f4E2M1FN) convert it to NaN or to a finite number.
        if np.isinf(np.asarray(math.inf).astype(held).astype(np.float64)):
            return -math.inf, math.inf
        known = finfo(self.real)
        return float(known.min), float(known.max)

    def __repr__(self) -> str:
        return self.name


# Bits, exponent and mantissa; FN: no infinities, and NaN in 8 bits only; UZ: zero is unsigned; B11:
# the bias of its exponent; the last U: without a sign.
_SMALL_FLOATS = (
    "4E2M1FN 6E2M3FN 6E3M2FN 8E3M4 8E4M3 8E4M3FN 8E4M3FNUZ 8E4M3B11FNUZ 8E5M2 8E5M2FNUZ 8E8M0FNU"
)


def _table() -> dict[str, DType]:
    rows: list[DType] = [DType("i1", "bool", 1)]
    for bits in (2, 4, 8, 16, 32, 64):
        rows += [DType(f"i{bits}", "int", bits), DType(f"ui{bits}", "uint", bits)]
    rows.append(DType("index", "int", 64))
    rows += [DType(f"f{name}", "float", int(name[0])) for name in _SMALL_FLOATS.split()]
    rows.append(DType("bf16", "float", 16))
    rows += [DType(f"f{bits}", "float", bits) for bits in (16, 32, 64)]
    rows += [DType(f"complex<f{bits}>", "complex", 2 * bits) for bits in (32, 64)]
    return {row.name: row for row in rows}


def _numpy(dtype: DType) -> np.dtype[Any]:
    """The numpy type that holds elements of a type."""
    name, bits = dtype.name, dtype.bits
    if dtype.kind == "bool":
        return np.dtype(bool)
    if not is_narrow(dtype):
        return np.dtype(f"{dtype.kind}{bits}")
    known = {"int": f"int{bits}", "uint": f"uint{bits}", "float": "bfloat16"}[dtype.kind]
    if dtype.kind == "float" and name != "bf16":
        known = f"float{name[1]}_{name[2:].lower()}"
    held: np.dtype[Any] = np.dtype(getattr(_ml_dtypes(), known))
    return held


def is_narrow(dtype: DType) -> bool:
    """Whether numpy itself has no such type."""
    least = {"bool": 1, "float": 16}.get(dtype.kind, 8)
    return dtype.bits < least or dtype.name == "bf16"


def finfo(dtype: DType) -> Any:
    """The `finfo` of a float type, from numpy or ml_dtypes."""
    return _ml_dtypes().finfo(dtype.numpy) if is_narrow(dtype) else np.finfo(dtype.numpy)


def _ml_dtypes() -> Any:
    try:
        import ml_dtypes
    except ImportError as error:
        raise WeftError(
            "arrays of bf16, fp8 and of less than 8 bits need the package ml_dtypes",
            help="pip install ml_dtypes",
        ) from error
    return ml_dtypes


DTYPES = _table()
BOOL, I32, I64, UI32, UI64 = (DTYPES[n] for n in ("i1", "i32", "i64", "ui32", "ui64"))
BF16, F32, F64 = DTYPES["bf16"], DTYPES["f32"], DTYPES["f64"]


# `index` is held as int64, too, which is read back as i64.
_HELD = [row for row in reversed(DTYPES.values()) if row.name != "index"]
_BY_NUMPY = {row.numpy: row for row in _HELD if not is_narrow(row)}


@cache
def _narrow_by_numpy() -> dict[np.dtype[Any], DType]:
    """The types that only ml_dtypes has; empty where it is not installed."""
    if importlib.util.find_spec("ml_dtypes") is None:
        return {}
    return {row.numpy: row for row in _HELD if is_narrow(row)}


def dtype(name: str) -> DType:
    """The element type of that MLIR name."""
    if found := DTYPES.get(name):
        return found
    if name.startswith("!quant"):
        raise Unsupported(
            f"quantized type {name}: quantized types are not supported",
            help="dequantize in the program (stablehlo.uniform_dequantize is refused, too)",
        )
    raise WeftError(f"unknown element type {name!r}", help=f"known: {', '.join(DTYPES)}")


def dtype_of(held: np.dtype[Any]) -> DType:
    """The element type that a numpy dtype holds."""
    if found := _BY_NUMPY.get(held) or _narrow_by_numpy().get(held):
        return found
    known = [
        row.numpy for row in _HELD if row in (*_BY_NUMPY.values(), *_narrow_by_numpy().values())
    ]
    raise WeftError(
        f"numpy dtype {held} has no StableHLO element type",
        help=f"convert the array first; known: {', '.join(map(str, known))}",
    )


@dataclass(frozen=True, slots=True)
class Symbol:
    """A dim whose size is known only when the program runs, never above its bound."""

    bound: int

    def __repr__(self) -> str:
        return f"?<={self.bound}"


Dim: TypeAlias = int | Symbol
Shape: TypeAlias = tuple[Dim, ...]


class TensorType:
    """A shape and an element type."""

    __slots__ = ("__weakref__", "_text", "dtype", "shape")
    _known: ClassVar[InternTable[tuple[Shape, DType], TensorType]] = InternTable()
    shape: Shape
    dtype: DType
    _text: str | None

    def __new__(cls, shape: Shape, dtype: DType) -> TensorType:
        key = (shape, dtype)
        if found := cls._known.get(key):
            return found
        self = object.__new__(cls)
        self.shape = shape
        self.dtype = dtype
        self._text = None
        return cls._known.enter(key, self)

    @property
    def rank(self) -> int:
        """The number of dims."""
        return len(self.shape)

    @property
    def is_static(self) -> bool:
        """Whether every dim is an integer."""
        return all(isinstance(d, int) for d in self.shape)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The shape, where every dim must be an integer."""
        for dim in self.shape:
            if isinstance(dim, Symbol):
                raise WeftError(
                    f"{self} has a dim that is known only at run time",
                    help=f"give it a size (at most {dim.bound}) when the program is captured",
                )
        return self.shape  # type: ignore[return-value]  # every dim is an int here

    @property
    def bounds(self) -> tuple[int, ...]:
        """The sizes, with every symbol replaced by its bound."""
        return tuple(d.bound if isinstance(d, Symbol) else d for d in self.shape)

    @property
    def size(self) -> int:
        """The number of elements at most."""
        return math.prod(self.bounds)

    @property
    def nbytes(self) -> int:
        """The bytes of the elements, packed."""
        return (self.size * self.dtype.bits + 7) // 8

    def with_shape(self, shape: Shape) -> TensorType:
        """The same elements in another shape."""
        return TensorType(shape, self.dtype)

    def with_dtype(self, dtype: DType) -> TensorType:
        """The same shape of other elements."""
        return TensorType(self.shape, dtype)

    def __reduce__(self) -> tuple[object, ...]:
        # Through the intern table: a copy would not be the same type.
        return _rebuild_tensor, (self.shape, self.dtype.name)

    def __repr__(self) -> str:
        if self._text is None:
            self._text = _tensor_text(self.shape, self.dtype)
        return self._text


def _rebuild_tensor(shape: Shape, name: str) -> TensorType:
    return TensorType(shape, DTYPES[name])


def _tensor_text(shape: Shape, dtype: DType) -> str:
    dims = "".join(f"{'?' if isinstance(d, Symbol) else d}x" for d in shape)
    if all(isinstance(d, int) for d in shape):
        return f"tensor<{dims}{dtype.name}>"
    bounds = ", ".join(str(d.bound) if isinstance(d, Symbol) else "?" for d in shape)
    return f"tensor<{dims}{dtype.name}, #stablehlo.bounds<{bounds}>>"


@dataclass(frozen=True, slots=True)
class TokenType:
    """The type of a value that only orders effects."""

    def __repr__(self) -> str:
        return "!stablehlo.token"


@dataclass(frozen=True, slots=True)
class TupleType:
    """Several values as one."""

    types: tuple[Type, ...]

    def __repr__(self) -> str:
        return f"tuple<{', '.join(map(str, self.types))}>"


@dataclass(frozen=True, slots=True)
class FutureType:
    """The result type of an asynchronous start: the result types of its done."""

    types: tuple[Type, ...]

    def __repr__(self) -> str:
        return f"!stablehlo.future<{', '.join(map(str, self.types))}>"


Type: TypeAlias = TensorType | TokenType | TupleType | FutureType
Types: TypeAlias = tuple[Type, ...]
TOKEN = TokenType()


def tensor(*shape: int, dtype: DType | str = F32) -> TensorType:
    """`tensor(8, 512, dtype="bf16")`, for tests and builders."""
    return TensorType(shape, DTYPES[dtype] if isinstance(dtype, str) else dtype)


def type_of(array: Array) -> TensorType:
    """The type of a numpy array."""
    return TensorType(tuple(array.shape), dtype_of(array.dtype))
