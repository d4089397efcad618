"""Constant tensors: numpy arrays with MLIR's text form, interned by content."""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Iterable
from typing import Any, ClassVar

import numpy as np

from weft.errors import Unsupported, WeftError
from weft.ir.intern import InternTable
from weft.ir.scan import balanced, parse_type, split
from weft.ir.types import Array, DType, TensorType, type_of

# MLIR's own limit: longer constants are written as one hex string.
HEX_LIMIT = 100
_DIGESTED = 1 << 12  # bytes from which a constant is known by a digest
# Arrays that a text refers to as dense_resource<name>: they are not written in it.
_RESOURCES: dict[str, Array] = {}
_NUMBERS = itertools.count()
_HEX_FLOAT = re.compile(r"0x([0-9A-Fa-f]+)")


class Dense:
    """The value of a constant: a type and a read-only array, one element long if all are equal."""

    __slots__ = ("__weakref__", "_text", "elements", "type")
    _known: ClassVar[InternTable[tuple[TensorType, bytes], Dense]] = InternTable()
    type: TensorType
    elements: Array
    _text: str | None

    def __new__(cls, array: Array, type: TensorType | None = None, *, owned: bool = False) -> Dense:
        """`owned`: nothing else refers to the array, which is not copied then."""
        type = type or type_of(array)
        flat = np.ascontiguousarray(array, dtype=type.dtype.numpy).reshape(-1)
        if flat.size > 1 and _all_equal(flat):
            flat = flat[:1]
        if flat.size != type.size and flat.size != 1:
            raise WeftError(
                f"a constant of type {type} has {flat.size} elements",
                help=f"give {type.size} elements, or one for all",
            )
        key = (type, _content_key(flat))
        if found := cls._known.get(key):
            return found
        self = object.__new__(cls)
        self.type = type
        # A view of one element would keep the whole array alive.
        self.elements = flat if owned and flat.size > 1 else flat.copy()
        self.elements.flags.writeable = False
        self._text = None
        return cls._known.enter(key, self)

    @property
    def is_splat(self) -> bool:
        """Whether one element stands for all."""
        return self.elements.size == 1

    @property
    def array(self) -> Array:
        """The whole array, read-only, without a copy."""
        if self.type.size == 0:
            return np.empty(self.type.sizes, self.type.dtype.numpy)
        if self.is_splat:
            return np.broadcast_to(self.elements.reshape(()), self.type.sizes)
        return self.elements.reshape(self.type.sizes)

    @property
    def text(self) -> str:
        """`dense<[1, 2]> : tensor<2xi32>`."""
        if self._text is None:
            self._text = f"dense<{self._body()}> : {self.type}"
        return self._text

    def _body(self) -> str:
        if self.type.size == 0:
            return ""
        if self.is_splat:
            return scalar_text(self.elements[0], self.type.dtype)
        if self.elements.size > HEX_LIMIT:
            return f'"0x{self.elements.tobytes().hex().upper()}"'
        return _nested(self.array, self.type.dtype)

    def __reduce__(self) -> tuple[object, ...]:
        return Dense, (self.elements, self.type)

    def __repr__(self) -> str:
        return self.text


def _all_equal(flat: Array) -> bool:
    """Whether all elements have the same bits."""
    raw = flat.view(np.uint8).reshape(flat.size, -1)
    # The first elements decide for nearly every array that is not a splat.
    some = raw[: min(flat.size, 64)]
    return bool((some == raw[0]).all()) and bool((raw == raw[0]).all())


def _content_key(flat: Array) -> bytes:
    """The equality key: the bytes of a small array, or the digest of a large one."""
    if flat.nbytes <= _DIGESTED:
        return flat.tobytes()
    return b"sha256" + hashlib.sha256(flat.view(np.uint8).data).digest()


def _nested(array: Array, dtype: DType) -> str:
    if array.ndim == 0:
        return scalar_text(array[()], dtype)
    return f"[{', '.join(_nested(part, dtype) for part in array)}]"


def scalar_text(value: Any, dtype: DType) -> str:
    """One element as MLIR writes it; NaN and infinities as their bits."""
    if dtype.kind == "bool":
        return "true" if value else "false"
    if dtype.is_integer:
        return str(int(value))
    if dtype.is_complex:
        parts = np.asarray(value).reshape(1).view(dtype.real.numpy)
        return f"({scalar_text(parts[0], dtype.real)}, {scalar_text(parts[1], dtype.real)})"
    number = float(value)
    if not np.isfinite(number):
        # The bits as one number, the most significant byte first.
        return "0x" + np.asarray(value).tobytes()[::-1].hex().upper()
    # MLIR's own six digits where they read back as the same number; else as many as any needs.
    if float(dtype.numpy.type(f"{number:.6e}")) == number:
        return f"{number:.6e}"
    digits = 17 if dtype.bits == 64 else 9
    return f"{number:.{digits - 1}e}"


def add_resource(array: Array) -> str:
    """Lend an array to texts, as `dense_resource<name>`; the name is unique."""
    name = f"weft_{next(_NUMBERS)}"
    _RESOURCES[name] = array
    return name


def drop_resources(names: Iterable[str]) -> None:
    """Forget lent arrays, when their text has been read."""
    for name in names:
        _RESOURCES.pop(name, None)


def _resource(text: str) -> Dense:
    """`dense_resource<name> : type`, of an array that was lent."""
    name, _, rest = text.removeprefix("dense_resource<").partition(">")
    type = parse_type(rest.strip().removeprefix(":"))
    array = _RESOURCES.get(name)
    if array is None or not isinstance(type, TensorType):
        raise Unsupported(
            f"constant of the form {text[:40]!r}", help="write it as dense<...> : tensor<...>"
        )
    return Dense(array, type, owned=True)


def parse_dense(text: str) -> Dense:
    """`dense<...> : type` from its MLIR text."""
    if text.startswith("dense_resource<"):
        return _resource(text)
    if not text.startswith("dense<"):
        raise Unsupported(
            f"constant of the form {text[:40]!r}", help="write it as dense<...> : tensor<...>"
        )
    end = balanced(text, 5)
    body = text[6 : end - 1].strip()
    type = parse_type(text[end:].strip().removeprefix(":"))
    if not isinstance(type, TensorType):
        raise WeftError(f"a constant of type {type}", help="constants are tensors")
    held = type.dtype.numpy
    if not body:
        return Dense(np.empty(0, held), type)
    if body.startswith('"0x'):
        return Dense(_from_hex(bytes.fromhex(body[3:-1]), type), type)
    return Dense(np.array([_scalar(e, type.dtype) for e in _flat(body)], held), type)


def _flat(body: str) -> list[str]:
    if not body.startswith("["):
        return [body]
    if "(" not in body:
        return [e.strip() for e in body.replace("[", " ").replace("]", " ").split(",")]
    return [e for part in split(body[1:-1]) for e in _flat(part)]


def _scalar(text: str, dtype: DType) -> object:
    if dtype.kind == "bool":
        return text in ("true", "1", "-1")
    if dtype.is_complex:
        left, right = split(text.strip()[1:-1]) if text.startswith("(") else (text, "0.0")
        parts = np.array([_scalar(left, dtype.real), _scalar(right, dtype.real)], dtype.real.numpy)
        return parts.view(dtype.numpy)[0]
    if dtype.is_integer:
        return int(text, 0)
    if match := _HEX_FLOAT.fullmatch(text):
        width = dtype.numpy.itemsize
        return np.frombuffer(int(match[1], 16).to_bytes(width, "little"), dtype.numpy)[0]
    return dtype.numpy.type(text)


def _from_hex(raw: bytes, type: TensorType) -> Array:
    if type.dtype.kind == "bool":
        # A byte for each boolean, or a bit, by the version of MLIR.
        if len(raw) == type.size:
            return np.frombuffer(raw, bool)
        if len(raw) == (type.size + 7) // 8:
            bits = np.unpackbits(np.frombuffer(raw, np.uint8), bitorder="little")
            return bits[: type.size].astype(bool)
    return np.frombuffer(raw, type.dtype.numpy)
