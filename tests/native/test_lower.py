"""The typed subset: every construct as machine code does what it does in Python."""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.native.machine import Machine, machine
from weft.emit.llvm.jit.processor import host
from weft.native.function import (
    NativeFunction,
    clear,
    copy,
    extern,
    fence,
    native,
    relax,
    to_i32,
    to_int,
    upper_bits,
    wrapped,
)
from weft.native.memory import Items, Member, Pointer, Struct, address, i8, i32
from weft.native.text import lowered_text

STEP = 3
FLAG = False
NAME = b"name\0"


class Node(Struct):
    next: Member[Node]
    count: Member[int]
    small: Member[i32]
    flag: Member[bool]
    work: Member[Callable[[int], int]]


@native
def arithmetic(a: int, b: int) -> int:
    """Numbers."""
    c = a * b - (a + STEP) ^ (b & 0xFF | 1)
    c += -a
    return wrapped(c) + (7 << 2) - (a >> 3) + ((b & 0xFF) << 2)


@native
def positive(a: int, b: int) -> int:
    """Quotients."""
    return a // b * 1000 + a % b


@native
def narrow(a: int) -> i32:
    """Fewer bits."""
    b = to_i32(a)
    b += 1
    return min(b, 100) + max(b, -100)


@native
def widened(a: int) -> int:
    """Fewer bits, and more again."""
    return to_int(to_i32(a)) * 2


@native
def compared(a: int, b: int) -> int:
    """Comparisons."""
    found = to_int(a == b) + 2 * to_int(a != b) + 4 * to_int(a < b)
    return found + 8 * to_int(a <= b) + 16 * to_int(a > b) + 32 * to_int(a >= b)


@native
def logic(a: int, b: int, c: int) -> int:
    """And, or, not, in values and in branches."""
    both = a > 0 and b > 0
    some = a > 0 or bump(c) > 3
    if not both and (some or bump(bump(c)) > 7) and not (a == b):  # noqa: SIM201
        return 1
    if both or not some:
        return 2
    return 3 if c > 5 else 4


@native
def bump(a: int) -> int:
    """One more."""
    return a + 1


@native
def collatz(a: int) -> int:
    """Loops, with what ends them early and what goes on."""
    steps = 0
    while True:
        if a == 1:
            break
        if a % 2 == 0:
            a = a // 2
            steps += 1
            continue
        a = 3 * a + 1
        steps += 1
        if steps > 200:
            return -1
    return steps


@native
def triangle(rows: int, stop: int) -> int:
    """Loops over ranges, one in the other."""
    total = 0
    last = -1
    for r in range(rows):
        for c in range(r, rows):
            if c == stop:
                continue
            if c > 2 * stop:
                break
            total += r * c
        last = r
    return total * 1000 + last


@native
def walk(node: Node) -> int:
    """Records and pointers."""
    total = 0
    while node:
        node.count += 1
        node.small = to_i32(node.count * 3)
        node.flag = not node.flag
        total += to_int(node.small) + to_int(node.flag)
        node = node.next
    return total


@native
def reverse(node: Node) -> Node:
    """Pointers that change places."""
    before = Node(0)
    while node:
        following = node.next
        node.next = before
        before = node
        node = following
    return before


@native
def elements(numbers: Items[int], count: int, bytes: Items[i8]) -> int:
    """Elements of arrays, and arrays behind others."""
    for n in range(count):
        numbers[n] = numbers[n] + Items[int](numbers.plus(8 * n))[0]
        bytes[n] = 5
    return numbers.after(count - 1)[0]


@native
def memory(to: Pointer, source: Pointer, nbytes: int) -> int:
    """Copies, cleared bytes, and the stack."""
    node = Node.new()
    node.count = 4
    clear(Node.count.of(node), 8)
    copy(to, source, nbytes)
    return node.count + address(to) - address(Pointer(address(to)))


@native
def mixed(a: int) -> int:
    """A hash."""
    return upper_bits(wrapped(a * 31 + 7) * 0x9E3779B97F4A7C15, 54)


@native
def constants() -> int:
    """Numbers that are known, branches that are never taken."""
    if FLAG:
        return STEP * 100
    return STEP


@native
def called(node: Node, a: int) -> int:
    """A function that a record holds, and one that a variable does."""
    work = node.work
    return node.work(a) + work(a + 1)


@native
def atomics(node: Node, a: int) -> int:
    """All atomic operations."""
    Node.count.store(node, a, "release")
    Node.small.store(node, 3, "seq_cst")
    before = Node.count.swap(node, a + 1, "acq_rel")
    before += Node.count.add(node, 5, "seq_cst")
    before += to_int(Node.small.add(node, -1, "monotonic"))
    if Node.count.replace(node, a + 6, 9, "acq_rel", "acquire"):
        before += 1000
    if Node.next.replace(node, node, node, "release", "monotonic"):
        before += 5000
    fence("seq_cst")
    relax()
    return before + Node.count.load(node, "acquire")


@extern
def strlen(text: bytes) -> int: ...


@native
def length() -> int:
    """Bytes that a text has."""
    return strlen(NAME)


FUNCTIONS: tuple[NativeFunction[..., Any], ...] = (
    *(arithmetic, positive, narrow, compared, logic, collatz, triangle, walk, reverse, elements),
    *(widened, memory, mixed, constants, called, atomics, length),
)


@functools.cache
def code() -> Machine:
    return machine(*FUNCTIONS)


small = st.integers(-40, 40)
any_number = st.integers(-(2**31), 2**31 - 1)


@given(any_number, any_number)
def test_arithmetic(a, b):
    assert code().arithmetic(a, b) == arithmetic(a, b)
    assert code().mixed(a) == mixed(a)
    assert code().compared(a, b) == compared(a, b)
    assert code().compared(a, a) == compared(a, a)
    assert code().narrow(a % 1000) == narrow(a % 1000)
    assert code().narrow(-(a % 1000)) == narrow(-(a % 1000))
    assert code().widened(a) == widened(a) == 2 * a


@given(st.integers(0, 2**62), st.integers(1, 2**62))
def test_quotients(a, b):
    assert code().positive(a % 10**12, b) == positive(a % 10**12, b)


@given(small, small, small)
def test_branches(a, b, c):
    assert code().logic(a, b, c) == logic(a, b, c)


@given(st.integers(1, 500), st.integers(0, 9), st.integers(0, 6))
def test_loops(a, rows, stop):
    assert code().collatz(a) == collatz(a)
    assert code().triangle(rows, stop) == triangle(rows, stop)


def chain(count: int) -> Node:
    first = Node.new(max(1, count))
    for n in range(count):
        node = first.nth(n)
        node.count, node.flag = n, n % 2 == 0
        node.next = first.nth(n + 1) if n + 1 < count else Node(0)
    return first


@given(st.integers(1, 6))
def test_records(count):
    one, other = chain(count), chain(count)
    assert code().walk(one) == walk(other)
    for made, first in ((code().reverse(one), one), (reverse(other), other)):
        order = []
        while made:
            order.append((address(made) - address(first)) // Node.SIZE)
            order += [made.count, made.small, made.flag]
            made = made.next
        assert order[::4] == [*reversed(range(count))]
        assert order[1::4] == [n + 1 for n in reversed(range(count))]


@given(st.lists(any_number, min_size=1, max_size=9))
def test_arrays(numbers):
    found = []
    for function in (code().elements, elements):
        held, marks = (ctypes.c_int64 * len(numbers))(*numbers), (ctypes.c_int8 * 16)()
        given = Items[int](ctypes.addressof(held)), len(numbers), Items[i8](ctypes.addressof(marks))
        found.append((function(*given), [*held], [*marks]))
    assert found[0] == found[1]


def test_memory_and_bytes():
    for function in (code().memory, memory):
        source, to = ctypes.create_string_buffer(b"some bytes"), ctypes.create_string_buffer(16)
        pair = Pointer(ctypes.addressof(to)), Pointer(ctypes.addressof(source))
        assert function(*pair, 4) == 0 and to.value == b"some"
    assert code().length() == length() == 4


def test_constants_are_the_targets():
    assert code().constants() == constants() == 3
    other = machine(constants, constants={"FLAG": 1, "STEP": 5})
    assert other.constants() == 500
    assert "ret i64 500" in lowered_text(host().triple, (constants,), {"FLAG": 1, "STEP": 5})


def test_functions_by_address():
    kind = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)
    twice = kind(lambda a: 2 * a)
    node = Node.new()
    ctypes.c_size_t.from_address(address(Node.work.of(node))).value = ctypes.cast(
        twice, ctypes.c_void_p
    ).value
    assert code().called(node, 4) == called(node, 4) == 18


@given(any_number)
def test_atomics(a):
    one, other = Node.new(), Node.new()
    assert code().atomics(one, a) == atomics(other, a)
    assert (one.count, one.small) == (other.count, other.small)


@native
def add_many(node: Node, rounds: int) -> None:
    """Counts at once, and by replacing."""
    for _ in range(rounds):
        Node.count.add(node, 1, "monotonic")
        done = False
        while not done:
            old = Node.small.load(node, "monotonic")
            done = Node.small.replace(node, old, old + 1, "acq_rel", "monotonic")


@pytest.mark.parametrize("rounds", [20_000, 200], ids=["machine code", "Python"])
def test_atomics_under_threads(rounds):
    function = machine(add_many).add_many if rounds > 1000 else add_many
    node = Node.new()
    threads = [threading.Thread(target=function, args=(node, rounds)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert node.count == node.small == 4 * rounds


# What is no part of the subset is refused, with the line.


@native
def wrong_field(node: Node) -> int:
    """No such field."""
    return node.cuont  # type: ignore[attr-defined]


@native
def wrong_width(node: Node) -> int:
    """32 bits where 64 are wanted."""
    return node.small + node.count


@native
def wrong_pointer(node: Node) -> Node:
    """A pointer to something else."""
    return Pointer(address(node))  # type: ignore[return-value]


@native
def no_answer(a: int) -> int:
    """A way without an answer."""
    if a > 0:
        return 1


@native
def with_try(a: int) -> int:
    """What is Python's."""
    try:
        return a
    except ValueError:
        return 0


@native
def unknown(a: int) -> int:
    """A name of nothing."""
    return a + nowhere  # noqa: F821


@native
def not_native(a: int) -> int:
    """A function of Python's."""
    return abs(a)


@pytest.mark.parametrize(
    ("function", "problem"),
    [
        (wrong_field, "has no field cuont"),
        (wrong_width, "i32 %"),
        (wrong_pointer, "where .* is wanted"),
        (no_answer, "returns nothing"),
        (with_try, "Try is not of the subset"),
        (unknown, "nowhere is not known"),
        (not_native, "abs is not known"),
    ],
)
def test_what_is_refused(function, problem):
    with pytest.raises(AssertionError, match=rf"test_lower.py:\d+: {function.name}: .*{problem}"):
        lowered_text(host().triple, (function,))
