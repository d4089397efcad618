"""Device functions of emitted kernels under Triton's interpreter: numpy for libdevice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import triton.language as tl
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle, _get_np_dtype

from weft.emit.triton import prelude
from weft.ops.numerics import arithmetic, special_functions

_NAMES: dict[str, Callable[..., Any]] = {
    "pow": np.power,
    "acos": np.arccos,
    "acosh": np.arccosh,
    "asin": np.arcsin,
    "asinh": np.arcsinh,
    "atan": np.arctan,
    "atanh": np.arctanh,
    "atan2": np.arctan2,
    "round": arithmetic.round_half_away,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "erf": special_functions.erf,
    "erfc": special_functions.erfc,
    "erfinv": special_functions.erf_inv,
    "lgamma": special_functions.lgamma,
    "popc": lambda x: np.bitwise_count(x.view(f"u{x.dtype.itemsize}")),  # not of absolute values
    "clz": lambda x: arithmetic.count_leading_zeros(x, 8 * x.dtype.itemsize),
}


def tile(data: Any, like: Any) -> Any:
    """A tile of the interpreter of the element type of another."""
    elements = np.asarray(data).astype(like.handle.data.dtype)
    kind = like.dtype.scalar
    if not like.type.is_block():  # whose one element the interpreter holds in an array
        return tl.core.tensor(TensorHandle(elements.reshape(1), kind), kind)
    return tl.core.tensor(TensorHandle(elements, kind), tl.block_type(kind, list(elements.shape)))


class _Library:
    """The device's functions, by numpy's."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        function = _NAMES.get(name) or getattr(np, name)

        def call(*args: Any) -> Any:
            with np.errstate(all="ignore"):
                arrays = np.broadcast_arrays(*[a.handle.data for a in args])
                return tile(function(*arrays), max(args, key=lambda a: a.handle.data.size))

        return call


def _row(function: Callable[..., Any], axis: int = 1) -> Callable[[Any], Any]:
    def call(a: Any) -> Any:
        with np.errstate(all="ignore"):
            return tile(function.reduce(a.handle.data, axis=axis, keepdims=True), a)  # type: ignore[attr-defined]

    return call


def _pick(best: Callable[..., Any]) -> Callable[..., Any]:
    """The first of the best keys along rows, by position: a row's tile may be in any order."""

    def call(key: Any, at: Any, *values: Any) -> Any:
        keys, places = key.handle.data, at.handle.data
        order = np.argsort(places, axis=1, kind="stable")
        found = best(np.take_along_axis(keys, order, 1), axis=1)[:, None]
        chosen = np.take_along_axis(order, found, 1)
        return tuple(
            tile(np.take_along_axis(np.broadcast_to(t.handle.data, keys.shape), chosen, 1), t)
            for t in (key, at, *values)
        )

    return call


def _scalar(a: Any) -> Any:
    kind = a.dtype.scalar
    return tl.core.tensor(
        TensorHandle(a.handle.data.sum(dtype=a.handle.data.dtype).reshape(1), kind), kind
    )


class _Prelude:
    """The prelude; reductions of rows by numpy, since the interpreter's take element by element."""

    sum = staticmethod(_scalar)
    sums = staticmethod(lambda a: tile(np.cumsum(a.handle.data), a))
    sum_columns = staticmethod(_row(np.add, axis=0))
    sum_row = staticmethod(_row(np.add))
    product_row = staticmethod(_row(np.multiply))
    max_row = staticmethod(_row(np.maximum))
    min_row = staticmethod(_row(np.minimum))
    and_row = staticmethod(_row(np.bitwise_and))
    or_row = staticmethod(_row(np.bitwise_or))
    xor_row = staticmethod(_row(np.bitwise_xor))
    pick_max_row = staticmethod(_pick(np.argmax))
    pick_min_row = staticmethod(_pick(np.argmin))
    place_max_row = staticmethod(_pick(np.argmax))
    place_min_row = staticmethod(_pick(np.argmin))

    @staticmethod
    def bound(a: Any) -> int:
        """A Python int, to which numpy converts no array of one dim."""
        return a if isinstance(a, int) else int(a.handle.data.item())

    @staticmethod
    def dot(a: Any, b: Any, total: Any) -> Any:
        """In f32: the interpreter multiplies the bits of narrower floats."""
        return tl.dot(a.to(tl.float32), b.to(tl.float32), total, input_precision="ieee")

    dot_tf32 = dot  # whose rounding the interpreter does not have

    def __getattr__(self, name: str) -> Any:
        return getattr(prelude, name)


def _splat(builder: Any, kind: Any, scalar: Any) -> TensorHandle:
    """A tile of one element: Triton's takes the type of a comparison from what is compared."""
    data = np.full(kind.shape, scalar.data.reshape(-1)[0], _get_np_dtype(kind.scalar))
    return TensorHandle(data, kind.scalar)


_cast = InterpreterBuilder.cast_impl


def _rounding(builder: Any, source: Any, kind: Any) -> TensorHandle:
    """A conversion, to the nearest bf16: the interpreter's own drops bits."""
    if source.dtype.scalar == tl.float32 and kind.scalar == tl.bfloat16:
        with np.errstate(all="ignore"):
            bits = source.data.astype(ml_dtypes.bfloat16).view(np.uint16)
        return TensorHandle(bits, kind.scalar)
    return _cast(builder, source, kind)


InterpreterBuilder.cast_impl = _rounding
InterpreterBuilder.create_splat = _splat
LIB: Any = _Library()
P: Any = _Prelude()
vars(prelude)["lib"] = LIB  # which the prelude itself calls
