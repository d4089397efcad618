"""Pointers, arrays and records: memory that native code and Python read by one declaration.

    class Node(Struct):
        next: Member[Node]
        count: Member[int]

A record's fields follow each other in the order of their declaration, each aligned to its size.
`Node(address)` is a view of memory: `node.count` loads, `node.count = 1` stores, and `Node.count`
is the field itself, with its offset and its atomic operations. In a native function (see
`weft.native.function`) the same expressions become loads, stores and atomic instructions.
"""

from __future__ import annotations

import ctypes
import inspect
import re
import sys
import threading
import typing
from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar, Generic, Literal, Self, TypeAlias, TypeVar, overload

i8: TypeAlias = Annotated[int, 8]
i32: TypeAlias = Annotated[int, 32]
MemoryOrder = Literal["monotonic", "acquire", "release", "acq_rel", "seq_cst"]

T = TypeVar("T")
Offsets: TypeAlias = Mapping[str, tuple[int, int]]  # of fields: where each is, and its bytes
# Two lines of 64 bytes: x86 prefetches lines in pairs, and some ARM cores have lines of 128, so
# fields that are 64 bytes apart would still be false sharing.
LINE = 128  # bytes that processors move between caches at a time, at most
_WORD = 8
_SIZES = {"i8": 1, "bool": 1, "i32": 4}
_ATOMIC = threading.RLock()  # makes read-modify-write atomic among Python threads


class Pointer:
    """An address, false where it is null; `Pointer(0)` is null."""

    __slots__ = ("__orig_class__", "_address", "_symbol")
    _address: int
    __orig_class__: Any
    _symbol: str  # of a global of a module: its name

    def __init__(self, at: int | Pointer) -> None:
        self._address = at if isinstance(at, int) else at._address

    def __bool__(self) -> bool:
        return self._address != 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Pointer) and self._address == other._address

    def __hash__(self) -> int:
        return hash(self._address)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._address:#x})"

    def plus(self, nbytes: int) -> Pointer:
        """The address at an offset in bytes."""
        return Pointer(self._address + nbytes)


def address(pointer: Pointer) -> int:
    """The address as a number."""
    return pointer._address


def symbol(pointer: Pointer) -> str:
    """The name of a global of a module."""
    return pointer._symbol


class Items(Pointer, Generic[T]):
    """Elements one after another: numbers, or pointers. `Items[int](address)` is a view."""

    __slots__ = ()

    def __getitem__(self, index: int) -> T:
        element: T = read(self._address + index * self._step, self._item)
        return element

    def __setitem__(self, index: int, value: T) -> None:
        write(self._address + index * self._step, self._item, value)

    def after(self, count: int) -> Self:
        """The elements from an index on."""
        return typing.cast(Self, Items[self._item](self._address + count * self._step))  # type: ignore[name-defined]

    @property
    def _item(self) -> Any:
        return typing.get_args(self.__orig_class__)[0]

    @property
    def _step(self) -> int:
        return size_of(self._item)


class Member(Generic[T]):
    """A field of a record: its offset, and its atomic operations."""

    __slots__ = ("_type", "inline", "name", "offset", "owner", "size")

    def __init__(
        self, owner: type[Struct], name: str, kind: object, offset: int, size: int, inline: bool
    ) -> None:
        self.owner, self.name, self.offset, self.size = owner, name, offset, size
        self._type, self.inline = kind, inline

    @property
    def type(self) -> Any:
        """The type of its values; of an inline field, the type of a pointer to it."""
        if isinstance(self._type, str):  # resolved late: records may refer to later ones
            self._type = resolve(self._type, sys.modules[self.owner.__module__].__dict__)
        return self._type

    @property
    def word(self) -> int:
        """The offset in words of 8 bytes."""
        assert self.offset % _WORD == 0, f"{self.name} is not a word"
        return self.offset // _WORD

    @overload
    def __get__(self, record: None, owner: object) -> Member[T]: ...
    @overload
    def __get__(self, record: Struct, owner: object) -> T: ...
    def __get__(self, record: Struct | None, owner: object) -> Member[T] | T:
        if record is None:
            return self
        at = address(record) + self.offset
        value: T = self.type(at) if self.inline else read(at, self.type)
        return value

    def __set__(self, record: Struct, value: T) -> None:
        assert not self.inline, f"{self.name} is memory inside of the record"
        write(address(record) + self.offset, self.type, value)

    def of(self, record: Struct) -> Pointer:
        """A pointer to the field of a record."""
        return Pointer(address(record) + self.offset)

    def load(self, record: Struct, order: MemoryOrder) -> T:
        """Atomic load."""
        # The GIL makes single accesses atomic among Python threads, and orders them.
        return self.__get__(record, None)

    def store(self, record: Struct, value: T, order: MemoryOrder) -> None:
        """Atomic store."""
        self.__set__(record, value)

    def swap(self, record: Struct, value: T, order: MemoryOrder) -> T:
        """Atomic exchange; the old value."""
        with _ATOMIC:
            before = self.__get__(record, None)
            self.__set__(record, value)
            return before

    def add(self, record: Struct, count: int, order: MemoryOrder) -> T:
        """Atomic add; the old value."""
        with _ATOMIC:
            before: Any = self.__get__(record, None)
            write(address(record) + self.offset, self.type, before + count)
            return typing.cast(T, before)

    def replace(
        self, record: Struct, old: T, new: T, order: MemoryOrder, otherwise: MemoryOrder
    ) -> bool:
        """Compare and exchange; whether it succeeded."""
        with _ATOMIC:
            if self.__get__(record, None) != old:
                return False
            self.__set__(record, new)
            return True


class _Placed:
    """Placement of a field: inline storage, or the start of a cache line."""

    __slots__ = ("count", "kind", "line")

    def __init__(self, kind: Any, count: int, line: bool) -> None:
        self.kind, self.count, self.line = kind, count, line


def inline(kind: Any = None, count: int = 1, *, line: bool = False) -> Any:
    """A field stored inline: a record, or an array of numbers or records.

    `line` aligns it to a cache line, also without a type, for an ordinary field.
    """
    return _Placed(kind, count, line)


class Struct(Pointer):
    """Fields by name. `size` fixes the size; `offsets` is the layout of a foreign structure.

    `before` is the number of words before the address, for handles that point into a record.
    """

    __slots__ = ("_memory",)
    _memory: object  # keeps the memory of `new` alive
    SIZE: ClassVar[int] = 0
    FIXED: ClassVar[int] = 0  # the size that the class or its base declares, if any
    FIELDS: ClassVar[dict[str, Member[Any]]] = {}

    def __init_subclass__(
        cls, *, size: int = 0, offsets: Offsets | None = None, before: int = 0
    ) -> None:
        # As a C struct that begins with another one: the fields of the base come first.
        base = typing.cast(type[Struct], cls.__mro__[1])
        end = max([f.offset + f.size for f in base.FIELDS.values()], default=0)
        cls.FIELDS = dict(base.FIELDS)
        end -= before * _WORD  # offsets of fields before the address are negative
        for name, text in inspect.get_annotations(cls).items():
            assert isinstance(text, str), "annotations are text: from __future__ import annotations"
            member = re.fullmatch(r"Member\[(.*)\]", text)
            if member is None:
                continue
            assert not hasattr(Struct, name), f"a record has {name} for itself"
            field = _field(cls, name, member[1], end, offsets)
            cls.FIELDS[name] = field
            setattr(cls, name, field)
            end = max(end, field.offset + field.size)
        cls.FIXED = size or base.FIXED
        cls.SIZE = cls.FIXED or (-(-end // _WORD) * _WORD)
        assert end <= cls.SIZE, f"the fields of {cls.__name__} end at {end}, after {cls.SIZE}"

    @classmethod
    def new(cls, count: int = 1) -> Self:
        """Zeroed records, owned by the result; on the stack in a native function."""
        memory = (ctypes.c_char * (cls.SIZE * count + LINE))()
        # Aligned by hand: ctypes knows no lines, and fields may begin at one.
        record = cls(-(-ctypes.addressof(memory) // LINE) * LINE)
        record._memory = memory
        return record

    @classmethod
    def static(cls, symbol: str) -> Self:
        """A global of a module; in Python, memory that is never freed."""
        record = cls.new()
        record._symbol = symbol
        return record

    @classmethod
    def words(cls, **values: int) -> list[int]:
        """The words of a record with these fields, for tables that Python writes."""
        words = [0] * (cls.SIZE // _WORD)
        for name, value in values.items():
            words[cls.FIELDS[name].word] = value
        return words

    def nth(self, count: int) -> Self:
        """The n-th record of an array that begins here."""
        return type(self)(self._address + count * self.SIZE)


def _field(
    owner: type[Struct], name: str, text: str, end: int, offsets: Offsets | None
) -> Member[Any]:
    placed = owner.__dict__.get(name)
    size, inside = _SIZES.get(text, _WORD), False
    align = size
    if isinstance(placed, _Placed):
        if placed.kind is not None:
            inside = True
            size = placed.count * size_of(placed.kind, inside=True)
            align = min(_WORD, size_of(placed.kind, inside=True))
        align = LINE if placed.line else align
    offset = -(-end // align) * align  # as C lays fields out
    if offsets is not None:
        offset, theirs = offsets[name]
        assert inside or theirs == size, f"{name} has {theirs} bytes, not {size}"
    return Member(owner, name, text, offset, size, inside)


def size_of(kind: Any, *, inside: bool = False) -> int:
    """The bytes of a value: of a record a pointer's, or with `inside` the record's own."""
    if inside and isinstance(kind, type) and issubclass(kind, Struct):
        return kind.SIZE
    if kind is bool:
        return 1
    return bits(kind) // 8 or _WORD


def bits(kind: Any) -> int:
    """The width of a type of numbers; 0 for pointers and everything else."""
    if kind is int:
        return 64
    if kind is bool:
        return 1
    if typing.get_origin(kind) is Annotated:
        return int(kind.__metadata__[0])
    return 0


def resolve(text: str, names: dict[str, Any]) -> Any:
    """The type that an annotation means."""
    holder = type("Holder", (), {"__annotations__": {"it": text}})
    kind = typing.get_type_hints(holder, names, include_extras=True)["it"]
    return None if kind is type(None) else kind


_NUMBERS: dict[int, Any] = {
    1: ctypes.c_bool,
    8: ctypes.c_int8,
    32: ctypes.c_int32,
    64: ctypes.c_int64,
}


def read(at: int, kind: Any) -> Any:
    """The value at an address."""
    if width := bits(kind):
        return _NUMBERS[width].from_address(at).value
    return as_pointer(ctypes.c_size_t.from_address(at).value, kind)


def write(at: int, kind: Any, value: Any) -> None:
    """Store a value at an address; numbers wrap around."""
    if width := bits(kind):
        _NUMBERS[width].from_address(at).value = value
    else:
        ctypes.c_size_t.from_address(at).value = number(value)


def as_pointer(at: int, kind: Any) -> Any:
    """A pointer of a type, a function among them."""
    return FunctionAt(at, kind) if typing.get_origin(kind) is Callable else kind(at)


class FunctionAt(Pointer):
    """The address of a function, which can be called."""

    __slots__ = ("kind",)

    def __init__(self, at: int | Pointer, kind: Any) -> None:
        super().__init__(at)
        self.kind = kind

    def __call__(self, *args: Any) -> Any:
        _, result = typing.get_args(self.kind)
        answer = function_type(self.kind)(self._address)(*map(number, args))
        return as_pointer(answer, result) if c_type(result) is ctypes.c_size_t else answer


def number(value: Any) -> int:
    """A value as an integer: a pointer is its address."""
    if isinstance(value, Pointer):
        return address(value)
    if isinstance(value, int):
        return value
    return ctypes.cast(value, ctypes.c_void_p).value or 0


def function_type(kind: Any) -> Any:
    """The type of ctypes for a type of functions."""
    parameters, result = typing.get_args(kind)
    return ctypes.CFUNCTYPE(c_type(result), *[c_type(one) for one in parameters])


def c_type(kind: Any) -> Any:
    """The type of ctypes for a type of values."""
    if kind is None or kind is type(None):
        return None
    return _NUMBERS.get(bits(kind), ctypes.c_size_t)
