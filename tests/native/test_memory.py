"""Records: one declaration, the same memory for C, for Python and for machine code."""

from __future__ import annotations

import ctypes
import functools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.native.machine import Machine
from weft.emit.llvm.jit.processor import host
from weft.native.builder import FunctionBuilder, NativeModule, Typed
from weft.native.function import native
from weft.native.memory import (
    LINE,
    Items,
    Member,
    Pointer,
    Struct,
    address,
    i8,
    i32,
    inline,
    read,
    write,
)

TYPES: dict[str, tuple[Any, Any]] = {
    "int": (int, ctypes.c_int64),
    "i32": (i32, ctypes.c_int32),
    "i8": (i8, ctypes.c_int8),
    "bool": (bool, ctypes.c_bool),
    "Pointer": (Pointer, ctypes.c_size_t),
}
fields = st.lists(st.sampled_from(sorted(TYPES)), min_size=1, max_size=12)


def declared(kinds: list[str]) -> type[Struct]:
    annotations = {f"f{n}": f"Member[{kind}]" for n, kind in enumerate(kinds)}
    return type("Made", (Struct,), {"__annotations__": annotations, "__module__": __name__})


@given(fields)
def test_fields_lie_where_c_has_them(kinds):
    record = declared(kinds)
    listed = [(f"f{n}", TYPES[kind][1]) for n, kind in enumerate(kinds)]
    structure = type("C", (ctypes.Structure,), {"_fields_": listed})
    for name, _ in listed:
        assert record.FIELDS[name].offset == getattr(structure, name).offset
        assert record.FIELDS[name].size == getattr(structure, name).size
    assert ctypes.sizeof(structure) <= record.SIZE and record.SIZE % 8 == 0


@functools.cache
def accessors(kinds: tuple[str, ...]) -> Machine:
    """Machine code that loads and stores each field of a record."""
    record, module, made = declared(list(kinds)), NativeModule(host().triple), []
    for name, field in record.FIELDS.items():
        b = FunctionBuilder(module, f"get_{name}", [("r", record)], field.type, internal=False)
        b.ret(b.get(Typed(record, "%r"), field))
        b.finish()
        params = [("r", record), ("v", field.type)]
        b = FunctionBuilder(module, f"set_{name}", params, None, internal=False)
        b.set(Typed(record, "%r"), field, Typed(field.type, "%v"))
        b.finish()
        made += [_declared(f"get_{name}", (record,), field.type)]
        made += [_declared(f"set_{name}", (record, field.type), None)]
    return Machine(module.text(), tuple(made))


def _declared(name: str, given: tuple[Any, ...], result: Any) -> Any:
    def python() -> None: ...

    python.__name__ = name
    made = native(python)
    made.signature = given, result
    return made


def values(kind: str) -> st.SearchStrategy[Any]:
    width = {"int": 64, "i32": 32, "i8": 8}.get(kind)
    if kind == "bool":
        return st.booleans()
    if kind == "Pointer":
        return st.integers(0, 2**64 - 1).map(Pointer)
    assert width is not None
    return st.integers(-(2 ** (width - 1)), 2 ** (width - 1) - 1)


@pytest.mark.parametrize(
    "kinds",
    [("int", "i32", "i8", "bool", "Pointer"), ("i8", "int", "bool", "i32", "i8", "Pointer")],
)
@given(data=st.data())
def test_machine_code_and_python_read_what_the_other_writes(kinds, data):
    code, record = accessors(kinds), declared(list(kinds)).new()
    for name, kind in zip(record.FIELDS, kinds, strict=True):
        value = data.draw(values(kind), label=name)
        before = {n: getattr(record, n) for n in record.FIELDS if n != name}
        getattr(code, f"set_{name}")(record, value)
        assert getattr(record, name) == value and getattr(code, f"get_{name}")(record) == value
        setattr(record, name, data.draw(values(kind)))
        assert getattr(code, f"get_{name}")(record) == getattr(record, name)
        assert before == {n: getattr(record, n) for n in before}, "a neighbour has changed"


class Inner(Struct):
    a: Member[i32]
    b: Member[int]


class Outer(Struct):
    head: Member[i8]
    numbers: Member[Items[int]] = inline(int, 3)
    inner: Member[Inner] = inline(Inner, 2)
    apart: Member[i32] = inline(line=True)
    next: Member[Outer]


class Longer(Outer):
    last: Member[int]


def test_memory_inside_of_a_record_and_lines():
    assert [f.offset for f in Outer.FIELDS.values()] == [0, 8, 32, LINE, LINE + 8]
    assert Outer.SIZE == LINE + 16 and Longer.last.offset == Outer.SIZE
    outer = Longer.new()
    assert address(outer) % LINE == 0
    outer.numbers[2] = 7
    outer.inner.nth(1).b = -1
    outer.next = outer
    assert read(address(outer) + 24, int) == 7 and outer.next.next.inner.nth(1).b == -1
    assert outer.next == outer and outer.inner.nth(1) == Inner(address(outer) + 48)


def test_a_record_says_what_is_wrong():
    with pytest.raises(AssertionError, match="end at 16, after 8"):
        type("Big", (Struct,), _body(a="Member[int]", b="Member[int]"), size=8)
    with pytest.raises(AssertionError, match="a has 4 bytes, not 8"):
        type("Other", (Struct,), _body(a="Member[int]"), offsets={"a": (0, 4)})
    with pytest.raises(AssertionError, match="memory inside"):
        Outer.new().inner = Inner(0)
    with pytest.raises(KeyError):
        Inner.words(c=1)
    assert not hasattr(Inner.new(), "c")


def _body(**annotations: str) -> dict[str, Any]:
    return {"__annotations__": annotations, "__module__": __name__}


def test_words_of_a_record():
    class Both(Struct, size=32):
        first: Member[int]
        second: Member[Pointer]

    assert Both.words(second=5) == [0, 5, 0, 0]


@given(st.integers(-(2**70), 2**70))
def test_numbers_wrap_around(value):
    cell = (ctypes.c_int64 * 1)()
    at = ctypes.addressof(cell)
    write(at, int, value)
    assert (read(at, int) - value) % 2**64 == 0
    write(at, i32, value)
    assert (read(at, i32) - value) % 2**32 == 0
