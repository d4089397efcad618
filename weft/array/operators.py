"""Operators and methods of arrays: one op each, with JAX's type promotion and shapes.

They are declared here by their names in jax.numpy. The implementation, a compiled program on the
array's own devices, is injected by `Operators.computed_by` when Weft is imported.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

Compute = Callable[[str, tuple[Any, ...], Mapping[str, Any]], Any]
_SCALARS = (bool, int, float, complex, np.generic)


def _never(name: str, args: tuple[Any, ...], options: Mapping[str, Any]) -> Any:
    raise AssertionError(f"no implementation of {name}: weft/__init__.py sets it")


def _binary(name: str, *, swapped: bool = False) -> Callable[[Any, Any], Any]:
    def operate(self: Operators, other: Any) -> Any:
        if not _is_operand(other):
            return NotImplemented
        return self.compute(name, (other, self) if swapped else (self, other), {})

    return operate


def _unary(name: str) -> Callable[[Any], Any]:
    def operate(self: Operators) -> Any:
        return self.compute(name, (self,), {})

    return operate


def _method(name: str) -> Callable[..., Any]:
    """A method with the signature of jax.numpy's function; numpy's functions call it, too."""

    def operate(self: Operators, *args: Any, out: None = None, **options: Any) -> Any:
        if out is not None:
            raise TypeError(f"{name}: arrays are immutable, so `out` is not supported")
        return self.compute(name, (self, *args), options)

    return operate


def _is_operand(other: Any) -> bool:
    """Whether an operator is Weft's to compute: with JAX arrays or tracers it is JAX's.

    For those, NotImplemented makes Python try the reflected operator of JAX.
    """
    return isinstance(other, (Operators, np.ndarray, *_SCALARS))


class Operators:
    """The operators and methods of arrays; results are Weft arrays."""

    compute: Compute = staticmethod(_never)

    __array_priority__ = 100  # precedence over numpy's operators

    @classmethod
    def computed_by(cls, compute: Compute) -> None:
        """Set the implementation: a function of the name in jax.numpy, operands, and options."""
        cls.compute = staticmethod(compute)

    __add__, __radd__ = _binary("add"), _binary("add", swapped=True)
    __sub__, __rsub__ = _binary("subtract"), _binary("subtract", swapped=True)
    __mul__, __rmul__ = _binary("multiply"), _binary("multiply", swapped=True)
    __truediv__, __rtruediv__ = _binary("true_divide"), _binary("true_divide", swapped=True)
    __floordiv__, __rfloordiv__ = _binary("floor_divide"), _binary("floor_divide", swapped=True)
    __mod__, __rmod__ = _binary("remainder"), _binary("remainder", swapped=True)
    __divmod__, __rdivmod__ = _binary("divmod"), _binary("divmod", swapped=True)
    __pow__, __rpow__ = _binary("power"), _binary("power", swapped=True)
    __matmul__, __rmatmul__ = _binary("matmul"), _binary("matmul", swapped=True)
    __and__, __rand__ = _binary("bitwise_and"), _binary("bitwise_and", swapped=True)
    __or__, __ror__ = _binary("bitwise_or"), _binary("bitwise_or", swapped=True)
    __xor__, __rxor__ = _binary("bitwise_xor"), _binary("bitwise_xor", swapped=True)
    __lshift__, __rlshift__ = _binary("left_shift"), _binary("left_shift", swapped=True)
    __rshift__, __rrshift__ = _binary("right_shift"), _binary("right_shift", swapped=True)
    __lt__, __le__ = _binary("less"), _binary("less_equal")
    __gt__, __ge__ = _binary("greater"), _binary("greater_equal")
    __eq__ = _binary("equal")
    __ne__ = _binary("not_equal")
    __hash__ = None  # type: ignore[assignment]
    __neg__, __pos__ = _unary("negative"), _unary("positive")
    __abs__, __invert__ = _unary("abs"), _unary("bitwise_not")

    sum, prod, mean = _method("sum"), _method("prod"), _method("mean")
    std, var = _method("std"), _method("var")
    min, max, ptp = _method("min"), _method("max"), _method("ptp")
    any, all = _method("any"), _method("all")
    argmin, argmax = _method("argmin"), _method("argmax")
    cumsum, cumprod = _method("cumsum"), _method("cumprod")
    round, clip = _method("round"), _method("clip")
    dot, trace, diagonal = _method("dot"), _method("trace"), _method("diagonal")
    squeeze, swapaxes = _method("squeeze"), _method("swapaxes")
    repeat, take = _method("repeat"), _method("take")
    sort, argsort = _method("sort"), _method("argsort")
    argpartition, searchsorted = _method("argpartition"), _method("searchsorted")
    ravel, flatten = _method("ravel"), _method("ravel")
    conj, conjugate = _method("conj"), _method("conj")

    T, mT = property(_unary("transpose")), property(_unary("matrix_transpose"))
    real, imag = property(_unary("real")), property(_unary("imag"))

    def __round__(self, decimals: int | None = None) -> Any:
        return self.compute("round", (self, decimals or 0), {})

    def reshape(self, *shape: Any, order: str = "C") -> Any:
        """The elements in another shape, given as a tuple or as numbers."""
        return self.compute("reshape", (self, _one(shape)), {"order": order})

    def transpose(self, *dims: Any) -> Any:
        """The dims permuted; reversed by default."""
        return self.compute("transpose", (self,), {"axes": _one(dims)} if dims else {})

    def astype(self, dtype: Any, *, copy: bool = True) -> Any:
        """The elements converted to another type."""
        return self.compute("astype", (self, dtype), {})

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        """numpy ufuncs: computed by Weft if jax.numpy has them, else by numpy.

        Calls with `out` and ufunc methods such as `reduce` are numpy's.
        """
        plain = method == "__call__" and not options and all(map(_is_operand, inputs))
        if plain and ufunc.nin + ufunc.nout > 1 and _in_jax(ufunc.__name__):
            return self.compute(ufunc.__name__, inputs, {})
        if any(hasattr(value, "__jax_array__") for value in options.get("out") or ()):
            return NotImplemented
        values = [np.asarray(v) if isinstance(v, Operators) else v for v in inputs]
        return getattr(ufunc, method)(*values, **options)


def _one(given: tuple[Any, ...]) -> Any:
    """Arguments given one by one or as one tuple."""
    return given[0] if len(given) == 1 else given


def _in_jax(name: str) -> bool:
    """Whether jax.numpy, if installed, has this function."""
    jax = sys.modules.get("jax")
    return jax is not None and hasattr(jax.numpy, name)
