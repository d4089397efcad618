"""Typed LLVM builder: values, fields of records, blocks, calls and atomic instructions."""

from __future__ import annotations

import typing
from collections.abc import Callable, Sequence
from typing import Any

from weft.native.function import NativeFunction
from weft.native.memory import Member, MemoryOrder, Pointer, Struct, bits, size_of
from weft.records import dataclass

# `yield` is a no-op on most ARM cores; `isb` takes about as long as x86's `pause`.
PAUSES = {
    "x86_64": ("llvm.x86.sse2.pause", ""),
    "aarch64": ("llvm.aarch64.isb", "i32 15"),
    "arm64": ("llvm.aarch64.isb", "i32 15"),
}
_COMPARE = {"==": "eq", "!=": "ne", "<": "slt", "<=": "sle", ">": "sgt", ">=": "sge"}
_ARITHMETIC = {
    "+": "add",
    "-": "sub",
    "*": "mul",
    # Unsigned: the subset has `//` and `%` of non-negative numbers only, where C's and Python's
    # agree.
    "//": "udiv",
    "%": "urem",
    "&": "and",
    "|": "or",
    "^": "xor",
    "<<": "shl",
    ">>": "ashr",
}


def llvm_type(kind: Any) -> str:
    """The type of a value in LLVM."""
    if kind is None or kind is type(None):
        return "void"
    width = bits(kind)
    return f"i{width}" if width else "ptr"


def memory_type(kind: Any) -> str:
    """The type of a value in memory."""
    # An i1 in memory has undefined upper bits.
    return "i8" if kind is bool else llvm_type(kind)


@dataclass(frozen=True, slots=True)
class Typed:
    """An operand: its type, its text, and whether it is a literal without a fixed width."""

    type: Any
    text: str
    literal: bool = False

    def __str__(self) -> str:
        return f"{llvm_type(self.type)} {self.text}"


NULL = Typed(Pointer, "null")


def constant(number: int, kind: Any = int) -> Typed:
    """An integer constant; one of 64 bits adapts to the other operand's width."""
    width = bits(kind)
    if width > 1:
        # Wrapped into the signed range: LLVM refuses literals that do not fit, and masks such as ~0
        # are negative numbers in Python.
        number = (number + (1 << width - 1)) % (1 << width) - (1 << width - 1)
    return Typed(kind, str(int(number)), literal=kind is int)


class NativeModule:
    """A module under construction: declarations, constants and functions."""

    def __init__(self, triple: str) -> None:
        self.architecture = triple.partition("-")[0]
        self.head: dict[str, None] = {}
        self.parts: list[str] = []
        self._strings: dict[bytes, str] = {}  # equal bytes are one constant

    def declare(self, line: str) -> None:
        """A line of the head, written once."""
        self.head[line] = None

    def string(self, data: bytes) -> Typed:
        """A pointer to constant bytes."""
        name = self._strings.setdefault(data, f"@bytes.{len(self._strings)}")
        text = "".join([f"\\{byte:02x}" for byte in data])
        self.declare(f'{name} = internal constant [{len(data)} x i8] c"{text}"')
        return Typed(Pointer, name)

    def text(self) -> str:
        """The whole text."""
        return "\n".join([*self.head, "", *self.parts])


class FunctionBuilder:
    """One function: instructions are appended to the open block.

    Variables are stack slots, which LLVM promotes to registers.
    """

    def __init__(
        self,
        module: NativeModule,
        name: str,
        params: Sequence[tuple[str, Any]],
        result: Any,
        *,
        internal: bool = True,
        attribute: str = "",
        doc: str = "",
    ) -> None:
        self.module, self.result = module, result
        parameters = ", ".join([f"{llvm_type(kind)} %{label}" for label, kind in params])
        linkage, end = "internal " if internal else "", f" {attribute}" if attribute else ""
        self._head = [f"; {line}" for line in doc.strip().splitlines()[:1]]
        self._head.append(f"define {linkage}{llvm_type(result)} @{name}({parameters}){end} {{")
        self._head.append("entry:")
        self._lines: list[str] = []
        self._count = 0
        self._targets: set[str] = set()  # blocks with a predecessor
        self.is_open = True  # whether the current block has no terminator yet

    def finish(self) -> None:
        """Add the function to the module."""
        # Only a procedure may end without a return; elsewhere a missing one is a mistake of the
        # source.
        if self.is_open and llvm_type(self.result) == "void":
            self.ret(None)
        assert not self.is_open, f"a way through {self._head[-2]} returns nothing"
        self.module.parts.append("\n".join([*self._head, *self._lines, "}", ""]))

    # Instructions

    def let(self, kind: Any, text: str) -> Typed:
        """An instruction with a result."""
        self._count += 1
        name = f"%t{self._count}"
        self.do(f"{name} = {text}")
        return Typed(kind, name)

    def do(self, text: str) -> None:
        """An instruction; unreachable ones, after the end of a block, are dropped."""
        if self.is_open:
            self._lines.append(f"  {text}")

    def arithmetic(self, op: str, left: Typed, right: Typed) -> Typed:
        """An arithmetic instruction; a literal takes the width of the other operand."""
        left, right = alike(left, right)
        return self.let(left.type, f"{_ARITHMETIC[op]} {left}, {right.text}")

    def compare(self, op: str, left: Typed, right: Typed) -> Typed:
        """Whether a relation holds between numbers or pointers."""
        left, right = alike(left, right)
        return self.let(bool, f"icmp {_COMPARE[op]} {left}, {right.text}")

    def truth(self, value: Typed) -> Typed:
        """Whether a number is not 0, or a pointer not null."""
        if value.type is bool:
            return value
        return self.compare("!=", value, constant(0) if bits(value.type) else NULL)

    def select(self, condition: Typed, yes: Typed, no: Typed) -> Typed:
        """One of two values."""
        yes, no = alike(yes, no)
        return self.let(yes.type, f"select {condition}, {yes}, {no}")

    def cast(self, kind: Any, value: Typed) -> Typed:
        """Convert between widths of numbers, types of pointers, or a number and a pointer."""
        have, want = bits(value.type), bits(kind)
        # Pointers of all types, and literals of all widths, are the same text.
        if have == want or (value.literal and want > 1):
            return Typed(kind, value.text, literal=False) if want else Typed(kind, value.text)
        if not have or not want:
            if value.text == "0":
                return Typed(kind, "null")
            op = "inttoptr" if have else "ptrtoint"
        elif have > want:
            op = "trunc"
        else:  # all numbers are signed but truth values, where i1 1 would become -1
            op = "zext" if have == 1 else "sext"
        return self.let(kind, f"{op} {value} to {llvm_type(kind)}")

    # Memory

    def offset(self, base: Typed, nbytes: int | Typed, kind: Any = Pointer) -> Typed:
        """A pointer at an offset in bytes."""
        if isinstance(nbytes, int) and nbytes == 0:
            return Typed(kind, base.text)
        text = nbytes.text if isinstance(nbytes, Typed) else str(nbytes)
        return self.let(kind, f"getelementptr i8, {base}, i64 {text}")

    def at(self, base: Typed, index: Typed, item: Any) -> Typed:
        """The address of an element of an array."""
        return self.let(Pointer, f"getelementptr {memory_type(item)}, {base}, {index}")

    def load(self, kind: Any, at: Typed, order: MemoryOrder | None = None) -> Typed:
        """The value at an address."""
        atomic = "atomic " if order else ""
        value = self.let(kind, f"load {atomic}{memory_type(kind)}, {at}{_ordered(order, kind)}")
        return self.let(bool, f"icmp ne i8 {value.text}, 0") if kind is bool else value

    def store(self, kind: Any, value: Typed, at: Typed, order: MemoryOrder | None = None) -> None:
        """Store a value at an address."""
        value = fitted(value, kind)
        if kind is bool:
            value = self.let(Pointer, f"zext {value} to i8")  # only its text is used below
        atomic = "atomic " if order else ""
        self.do(f"store {atomic}{memory_type(kind)} {value.text}, {at}{_ordered(order, kind)}")

    def field(self, record: Typed, field: Member[Any]) -> Typed:
        """The address of a field of a record."""
        assert isinstance(record.type, type) and issubclass(record.type, field.owner), (
            f"{field.name} is a field of {field.owner.__name__}, not of {record.type}"
        )
        return self.offset(record, field.offset, field.type if field.inline else Pointer)

    def get(self, record: Typed, field: Member[Any], order: MemoryOrder | None = None) -> Typed:
        """The value of a field; of an inline one, a pointer to it."""
        at = self.field(record, field)
        return at if field.inline else self.load(field.type, at, order)

    def set(
        self, record: Typed, field: Member[Any], value: Typed, order: MemoryOrder | None = None
    ) -> None:
        """Store into a field."""
        assert not field.inline, f"{field.name} is memory inside of the record"
        self.store(field.type, value, self.field(record, field), order)

    def swap(self, record: Typed, field: Member[Any], value: Typed, order: MemoryOrder) -> Typed:
        """Atomic exchange; the old value."""
        return self._change("xchg", record, field, value, order)

    def add(self, record: Typed, field: Member[Any], count: Typed, order: MemoryOrder) -> Typed:
        """Atomic add; the old value."""
        return self._change("add", record, field, count, order)

    def _change(
        self, op: str, record: Typed, field: Member[Any], value: Typed, order: MemoryOrder
    ) -> Typed:
        value, at = fitted(value, field.type), self.field(record, field)
        text = f"atomicrmw {op} {at}, {value} {order}, align {size_of(field.type)}"
        return self.let(field.type, text)

    def replace(
        self, record: Typed, field: Member[Any], old: Typed, new: Typed, *orders: MemoryOrder
    ) -> Typed:
        """Compare and exchange; whether it succeeded."""
        old, new, at = fitted(old, field.type), fitted(new, field.type), self.field(record, field)
        # The result is a pair: the value that was there, and whether it was replaced.
        pair = self.let(Pointer, f"cmpxchg {at}, {old}, {new} {' '.join(orders)}")
        return self.let(bool, f"extractvalue {{ {llvm_type(field.type)}, i1 }} {pair.text}, 1")

    def local(self, text: str, align: int, kind: Any) -> Typed:
        """Stack memory, allocated once for each call."""
        self._count += 1
        name = f"%v{self._count}"
        # In the entry block: SROA promotes only those, and an alloca in a loop would grow the
        # stack.
        self._head.append(f"  {name} = alloca {text}, align {align}")
        return Typed(kind, name)

    def variable(self, kind: Any) -> Typed:
        """The stack slot of a variable."""
        return self.local(llvm_type(kind), max(1, bits(kind) // 8 or 8), Pointer)

    def put(self, kind: Any, value: Typed, variable: Typed) -> None:
        """Assign to a variable."""
        self.do(f"store {fitted(value, kind)}, {variable}")

    def take(self, kind: Any, variable: Typed) -> Typed:
        """The value of a variable."""
        return self.let(kind, f"load {llvm_type(kind)}, {variable}")

    # Functions

    def call(self, function: NativeFunction[Any, Any], args: Sequence[Typed]) -> Typed:
        """Call a function that the module has or declares."""
        parameters, result = function.signature
        if function.external:
            fixed = parameters if function.fixed < 0 else parameters[: function.fixed]
            dots = [] if function.fixed < 0 else ["..."]
            types = ", ".join([*map(llvm_type, fixed), *dots])
            self.module.declare(f"declare {llvm_type(result)} @{function.name}({types})")
            # A call of a variadic function needs the whole function type, not only the result's.
            kind = f" ({types})" if dots else ""
            return self._call(result, f"{kind} @{function.name}", parameters, args)
        return self._call(result, f" @{function.name}", parameters, args)

    def call_at(
        self, function: Typed, types: Sequence[Any], result: Any, args: Sequence[Typed]
    ) -> Typed:
        """Call the function at an address."""
        return self._call(result, f" {function.text}", types, args)

    def _call(self, result: Any, callee: str, types: Sequence[Any], args: Sequence[Typed]) -> Typed:
        pairs = zip(args, types, strict=True)
        passed = ", ".join([str(fitted(arg, kind)) for arg, kind in pairs])
        text = f"call {llvm_type(result)}{callee}({passed})"
        if llvm_type(result) == "void":
            self.do(text)
            return Typed(None, "")
        return self.let(result, text)

    def intrinsic(self, result: Any, name: str, *args: Typed) -> Typed:
        """Call an intrinsic of LLVM."""
        types = ", ".join([llvm_type(arg.type) for arg in args])
        self.module.declare(f"declare {llvm_type(result)} @{name}({types})")
        return self._call(result, f" @{name}", [arg.type for arg in args], args)

    def pause(self) -> None:
        """The spin-loop hint of the architecture, if it has one."""
        name, argument = PAUSES.get(self.module.architecture, ("", ""))
        if name:
            self.module.declare(f"declare void @{name}({argument.partition(' ')[0]})")
            self.do(f"call void @{name}({argument})")

    # Blocks

    def label(self, hint: str) -> str:
        """A name for a block."""
        self._count += 1
        return f"{hint}{self._count}"

    def begin(self, label: str) -> None:
        """Begin a block; an open one falls through into it.

        A block without predecessors stays closed, and its instructions are dropped.
        """
        self.jump(label)
        if label in self._targets:
            self._lines.append(f"{label}:")
            self.is_open = True

    def jump(self, label: str) -> None:
        """End the block with an unconditional branch."""
        if self.is_open:
            self._targets.add(label)
            self._end(f"br label %{label}")

    def branch(self, condition: Typed, yes: str, no: str) -> None:
        """End the block with a conditional branch."""
        if self.is_open:
            self._targets |= {yes, no}
            self._end(f"br {condition}, label %{yes}, label %{no}")

    def ret(self, value: Typed | None) -> None:
        """End the block with a return."""
        self._end("ret void" if value is None else f"ret {fitted(value, self.result)}")

    def unreachable(self) -> None:
        """End a block that no thread reaches the end of."""
        self._end("unreachable")

    def _end(self, text: str) -> None:
        self.do(text)
        self.is_open = False


def _ordered(order: MemoryOrder | None, kind: Any) -> str:
    # Atomic accesses must name their alignment; others have that of their type.
    return f" {order}, align {size_of(kind)}" if order else ""


def fitted(value: Typed, kind: Any) -> Typed:
    """Check an operand against the expected type; literals take its width."""
    have, want = bits(value.type), bits(kind)
    if value.literal and want > 1:
        return Typed(kind, value.text)
    assert have == want, f"{value} where {llvm_type(kind)} is wanted"
    if not want:
        assert suits(value.type, kind), f"a pointer to {value.type} where {kind} is wanted"
    return value


def suits(have: Any, want: Any) -> bool:
    """Whether a pointer may be used as one of another type: every pointer is a `Pointer`."""
    if have == want or want is Pointer or (have is Pointer and want is bytes):
        return True
    if typing.get_origin(have) is typing.get_origin(want) is Callable:
        return typing.get_args(want)[0] is Ellipsis
    pair = isinstance(have, type) and isinstance(want, type)
    return pair and issubclass(have, want) and issubclass(want, Struct)


def alike(left: Typed, right: Typed) -> tuple[Typed, Typed]:
    """Two operands of one type: a literal takes that of the other one."""
    if left.literal and bits(right.type) > 1:
        left = Typed(right.type, left.text, right.literal)
    if right.literal and bits(left.type) > 1:
        right = Typed(left.type, right.text, left.literal)
    # LLVM's pointers are opaque: all have one type, whatever they point to.
    if right.text == "null" or (not bits(left.type) and not bits(right.type)):
        return left, right
    assert llvm_type(left.type) == llvm_type(right.type), f"{left} and {right}"
    return left, right
