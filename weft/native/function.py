"""Native functions, written in Python: `@native` marks one, `@extern` declares one of C.

    @native
    def length(node: Node) -> int:
        count = 0
        while node:
            count += 1
            node = node.next
        return count

Called from Python a function runs as Python, on the same memory: tests compare the machine code
with that model, and a debugger steps through it. `weft.native.lower` lowers it to LLVM text. The
subset: names, numbers, pointers, records (`weft.native.memory`), `if`, `while`,
`for` over a range, and calls. Numbers are `int` (64 bits, wrapping around), `i32`, `i8` and `bool`;
`//` and `%` are of numbers that are not negative.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Generic, Literal, ParamSpec, TypeVar, overload

from weft.native.memory import MemoryOrder, Pointer, address, c_type, function_type, number, resolve

P = ParamSpec("P")
R = TypeVar("R")
_MASK = (1 << 64) - 1


class NativeFunction(Generic[P, R]):
    """A function that runs as Python and has, or is bound to, a native symbol."""

    def __init__(
        self,
        python: Callable[P, R],
        *,
        name: str = "",
        external: bool = False,
        attribute: str = "",
        fixed: int = -1,
    ) -> None:
        self.python: Callable[P, R] = python
        self.source: Callable[P, R] = python
        self.external, self.attribute = external, attribute
        self.fixed = fixed  # fixed parameters of a variadic function; -1: not variadic
        self.name = name or python.__name__
        self.__doc__ = python.__doc__

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.python(*args, **kwargs)

    @functools.cached_property
    def signature(self) -> tuple[tuple[Any, ...], Any]:
        """The types of the parameters and of the result."""
        annotations = dict(self.source.__annotations__)  # in the order of the parameters
        names: dict[str, Any] = getattr(self.source, "__globals__", {})
        result = resolve(annotations.pop("return"), names)
        return tuple([resolve(text, names) for text in annotations.values()]), result

    @functools.cached_property
    def pointer(self) -> Any:
        """A C callback that runs this function as Python."""
        parameters, result = self.signature
        return function_type(Callable[[*parameters], result])(self._called)

    def _called(self, *args: Any) -> Any:
        parameters, _ = self.signature
        python: Any = self.python
        # ctypes passes pointers as numbers (size_t): wrap them in the types of the parameters.
        result = python(
            *[
                a if c_type(k) is not ctypes.c_size_t else k(a)
                for a, k in zip(args, parameters, strict=True)
            ]
        )
        return number(result) if isinstance(result, Pointer) else result

    @contextmanager
    def replaced(self, python: Callable[..., Any]) -> Iterator[None]:
        """Another model of the function, for a test."""
        before, self.python = self.python, python
        try:
            yield
        finally:
            self.python = before


@overload
def native(function: Callable[P, R], /) -> NativeFunction[P, R]: ...
@overload
def native(
    *, name: str = "", attribute: Literal["", "noinline", "alwaysinline"] = ""
) -> Callable[[Callable[P, R]], NativeFunction[P, R]]: ...
def native(function: Any = None, /, *, name: str = "", attribute: str = "") -> Any:
    """Mark a function as native; its symbol is `name`, by default its own."""
    if function is None:
        return functools.partial(NativeFunction, name=name, attribute=attribute)
    return NativeFunction(function)


@overload
def extern(function: Callable[P, R], /) -> NativeFunction[P, R]: ...
@overload
def extern(
    *, name: str = "", fixed: int = -1
) -> Callable[[Callable[P, R]], NativeFunction[P, R]]: ...
def extern(function: Any = None, /, *, name: str = "", fixed: int = -1) -> Any:
    """Declare a C function; `fixed` is the number of fixed parameters of a variadic one."""
    if function is None:
        return functools.partial(_extern, name=name, fixed=fixed)
    return _extern(function)


def _extern(function: Callable[P, R], name: str = "", fixed: int = -1) -> NativeFunction[P, R]:
    """Bind a declaration to the C function of its name."""
    declared = NativeFunction(function, name=name, external=True, fixed=fixed)

    def call(*args: Any) -> Any:
        parameters, result = declared.signature
        # PyDLL, which keeps the GIL: some of these are functions of Python's C API.
        theirs = getattr(ctypes.PyDLL(None), declared.name)
        # bytes as void *, so that ctypes passes the address of their elements.
        theirs.argtypes = [ctypes.c_void_p if k is bytes else c_type(k) for k in parameters]
        theirs.restype = c_type(result)
        answer = theirs(*[_argument(one) for one in args])
        return result(answer) if theirs.restype is ctypes.c_size_t else answer

    declared.source = function
    declared.python = call  # type: ignore[assignment]
    return declared


def _argument(value: Any) -> Any:
    if isinstance(value, NativeFunction):
        return number(value.pointer)
    return number(value) if isinstance(value, Pointer) else value


# Operations that lower to instructions, with their Python semantics.


def fence(order: MemoryOrder) -> None:
    """Memory fence."""
    # Nothing to do in Python, whose threads run one at a time, under the GIL.


def relax() -> None:
    """Spin-loop hint (x86 `pause`)."""


def unreachable() -> None:
    """Unreachable code."""
    raise AssertionError("a function that does not return has returned")


def copy(to: Pointer, source: Pointer, nbytes: int) -> None:
    """Copy bytes that do not overlap."""
    ctypes.memmove(address(to), address(source), nbytes)


def clear(at: Pointer, nbytes: int) -> None:
    """Set bytes to 0."""
    ctypes.memset(address(at), 0, nbytes)


def to_i32(number: int) -> int:
    """The lower 32 bits."""
    return ctypes.c_int32(number).value


def to_int(number: int) -> int:
    """Sign-extend an integer, or zero-extend a bool, to 64 bits."""
    return int(number)


def wrapped(number: int) -> int:
    """Wrap around at 64 bits."""
    return ctypes.c_int64(number & _MASK).value


def upper_bits(number: int, shift: int) -> int:
    """Logical shift to the right."""
    return (number & _MASK) >> shift


OPERATIONS = (
    *(fence, relax, unreachable, copy, clear, to_i32, to_int, wrapped, upper_bits, address),
    *(min, max),
)
