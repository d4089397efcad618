"""Object layouts of CPython and numpy that Weft reads, and the CPython versions they hold for.

All code that reads an object through its address uses the records declared here. At import they are
checked against live objects.
"""

from __future__ import annotations

import ctypes
import sys
import warnings
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.native.memory import Items, Member, Offsets, Pointer, Struct, i32, inline

if TYPE_CHECKING:
    import numpy.typing as npt

TRIED = ((3, 11), (3, 12), (3, 13))  # CPython versions
_NAMES = {"cpython": "CPython", "pypy": "PyPy"}
_WORD = 8


class PyObject(Struct):
    """The header of every object: CPython's `PyObject`."""

    references: Member[int]
    type: Member[Pointer]


class PyTuple(PyObject):
    """A tuple; its items follow."""

    size: Member[int]
    items: Member[Items[PyObject]] = inline(int, 0)


class NumpyArray(PyObject):
    """An array of numpy: `PyArrayObject_fields` of its C API."""

    data: Member[Pointer]  # the first element
    rank: Member[i32]
    sizes: Member[Items[int]]
    strides: Member[Items[int]]
    base: Member[PyObject]
    dtype: Member[Pointer]
    flags: Member[i32]


def untried() -> str | None:
    """The name of this Python if its object layout is untested, else None."""
    kind = sys.implementation.name
    name = " ".join([_NAMES.get(kind, kind), ".".join(map(str, sys.version_info[:3]))])
    if "free-threading build" in sys.version:
        return f"{name}, free-threaded,"
    if hasattr(sys, "getobjects"):  # debug builds prefix every object with two more words
        return f"{name} with traced references"
    if ctypes.sizeof(ctypes.c_void_p) != _WORD:
        return f"{name} with 32 bits"
    tried = kind == "cpython" and sys.version_info[:2] in TRIED
    return None if tried else name


@cache
def reads_objects() -> bool:
    """Whether native code reads Python objects; warns once if not."""
    name = untried()
    if name is None:
        return _LAYOUTS_FIT
    known = ", ".join([".".join(map(str, version)) for version in TRIED])
    warnings.warn(
        f"Weft was not tried on {name} but on CPython {known}: native code does not read "
        "Python's objects, so calls of small programs are slower",
        RuntimeWarning,
        stacklevel=3,
    )
    return False


def pointer_to(held: object) -> int:
    """The `PyObject *` of an object; valid as long as the object is referenced."""
    return ctypes.c_size_t.from_buffer(ctypes.py_object(held)).value


def slot_offsets(kind: type) -> Offsets:
    """The offsets of the `__slots__` of a class, found by probing an instance.

    They are placeholders on a Python whose objects are not read.
    """
    names = [name for name in kind.__dict__["__slots__"] if not name.startswith("__")]
    if untried() is not None:
        return {name: (PyObject.SIZE + _WORD * n, _WORD) for n, name in enumerate(names)}
    # CPython lays slots out in an order of its own (sorted by mangled name): put a distinct object
    # into each, and find its pointer among the words of the instance.
    probe: object = object.__new__(kind)
    marks = {name: object() for name in names}
    for name, mark in marks.items():
        kind.__dict__[name].__set__(probe, mark)
    words = (ctypes.c_size_t * (kind.__basicsize__ // _WORD)).from_address(id(probe))
    places = {word: _WORD * n for n, word in enumerate(words)}
    return {name: (places[id(mark)], _WORD) for name, mark in marks.items()}


_DATA_AT = NumpyArray.data.offset


def _read(array: npt.NDArray[Any]) -> int:
    """The data address, read from the ndarray struct: `ctypes.data` is slow."""
    return ctypes.c_void_p.from_address(id(array) + _DATA_AT).value or 0


def _ask(array: npt.NDArray[Any]) -> int:
    return int(array.ctypes.data)


def _is_described(array: npt.NDArray[Any]) -> bool:
    """Whether an array's record agrees with numpy."""
    read = NumpyArray(id(array))
    same = read.rank == array.ndim and read.dtype == Pointer(id(array.dtype))
    sizes = tuple([read.sizes[n] for n in range(array.ndim)])
    return same and sizes == array.shape and read.flags == array.flags.num


def _layouts_fit() -> bool:
    """Whether live objects have the layouts declared above."""
    if untried() is not None:
        return False
    if object.__basicsize__ != PyObject.SIZE or tuple.__basicsize__ != PyTuple.SIZE:
        return False
    # Arrays of different ranks and flags: owned and dense, a view with an offset, empty.
    arrays: list[npt.NDArray[Any]] = [np.ones(3), np.ones((4, 4), np.int8)[1:, 2:], np.zeros(0)]
    pair = PyTuple(id(held := (arrays[0], arrays)))
    return (
        all(_read(array) == _ask(array) and _is_described(array) for array in arrays)
        and pair.size == len(held)
        and [pair.items[n] for n in range(2)] == [PyObject(id(one)) for one in held]
        and pair.items[0].type == Pointer(id(np.ndarray))
    )


_LAYOUTS_FIT = _layouts_fit()
address_of = _read if _LAYOUTS_FIT else _ask  # called for every argument: chosen once
