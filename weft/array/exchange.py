"""Conversion between numpy arrays and those of other packages, zero-copy where possible."""

from __future__ import annotations

import sys
from functools import cache
from typing import Any

import numpy as np

from weft.errors import WeftError, missing_extra
from weft.ir.types import DTYPES, Array, dtype_of, is_narrow
from weft.records import dataclass


@dataclass(frozen=True, slots=True)
class Writable:
    """An array of the caller's that a program may overwrite: its memory is updated in place."""

    array: Any  # of numpy, or a tensor in the memory of a device


def to_numpy(value: Any) -> Array:
    """Any array-like as a numpy array: numpy, JAX, PyTorch, DLPack, numbers and lists."""
    if isinstance(value, np.ndarray):  # or a class that claims to be one, as Weft's own
        array = np.asarray(value)
    elif type(value).__module__.partition(".")[0] == "torch":
        array = _from_torch(value)
    elif hasattr(value, "__array__") or not hasattr(value, "__dlpack__"):
        array = _weak(value)
    else:
        array = np.from_dlpack(value)
    dtype = in_native_order(array.dtype)
    if dtype.kind in "TU":
        raise WeftError(
            f"{_shown(value)} holds strings, which cannot be computed with",
            help="weft.put alone takes strings; give programs numbers in their place",
        )
    if dtype.kind == "O":
        raise WeftError(
            f"{_shown(value)} holds Python objects, not numbers of one type",
            help="convert it first, as with numpy.asarray(x, dtype=numpy.float32)",
        )
    dtype_of(dtype)  # raises for an unknown element type
    return array.astype(dtype, copy=False)


def in_native_order(dtype: Any) -> Any:
    """The dtype in native byte order."""
    return dtype if dtype.isnative else dtype.newbyteorder("=")


def _shown(given: Any) -> str:
    if isinstance(given, np.ndarray):
        return f"an array of dtype {given.dtype}"
    return f"{type(given).__name__} {given!r}"[:80]


def _weak(value: Any) -> Array:
    """An array; Python numbers and lists get JAX's default types."""
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise WeftError(
            f"{_shown(value)} is not an array: {error}",
            help="give every row the same number of elements",
        ) from None
    if isinstance(value, bool | int | float | complex | list | tuple):
        narrow = {"float64": np.float32, "int64": np.int32, "complex128": np.complex64}
        return array.astype(narrow.get(str(array.dtype), array.dtype))
    return array


@cache
def _types_of_bits() -> dict[str, np.dtype[Any]]:
    """Floats that numpy itself lacks, by their name in PyTorch too: their bits are exchanged."""
    floats = [dtype for dtype in DTYPES.values() if dtype.kind == "float" and is_narrow(dtype)]
    return {dtype.numpy.name: dtype.numpy for dtype in floats if dtype.bits >= 8}


def _from_torch(tensor: Any) -> Array:
    torch = sys.modules["torch"]
    held = tensor.detach().resolve_conj().resolve_neg()  # lazy in PyTorch: flags of a view
    if held.device.type == "meta":
        raise WeftError(
            "a tensor on the meta device has no elements",
            help="compile for it, by weft.compile(module, x), and call with tensors on the host",
        )
    if held.device.type != "cpu":
        held = held.cpu()
    name = str(held.dtype).removeprefix("torch.")
    if (dtype := _types_of_bits().get(name)) is not None:
        bits: Array = held.view(getattr(torch, f"int{dtype.itemsize * 8}")).numpy()
        return bits.view(dtype)
    try:
        made: Array = held.numpy()
    except TypeError:
        raise WeftError(
            f"no arrays have the type torch.{name}", help="convert the tensor first"
        ) from None
    return made


def to_torch(array: Array) -> Any:
    """A PyTorch tensor that shares the memory, or a copy if it is read-only."""
    try:
        import torch
    except ImportError:
        raise missing_extra("torch", "torch", "an array of PyTorch") from None
    held = array if array.flags.writeable else array.copy()
    name = held.dtype.name
    if name in _types_of_bits() and hasattr(torch, name):
        bits = torch.from_numpy(held.view(f"i{held.dtype.itemsize}"))
        return bits.view(getattr(torch, name))
    try:
        return torch.from_numpy(held)
    except TypeError:
        raise WeftError(
            f"PyTorch has no tensors of {array.dtype}", help="convert the array first"
        ) from None


def to_jax(array: Array) -> Any:
    """A JAX array, zero-copy where the alignment allows."""
    try:
        import jax
    except ImportError:
        raise missing_extra("jax", "jax", "an array of JAX") from None
    return jax.numpy.asarray(array)
