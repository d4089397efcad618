"""Sorting records by unsigned integer keys: digit by digit from the lowest, or by insertion."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from weft.emit.llvm.code import Code
from weft.emit.llvm.move import address, put, take
from weft.emit.llvm.nest import plus

DIGIT = 8  # bits that one pass looks at
BUCKETS = 1 << DIGIT
FEW = 24  # so many records are sorted by insertion


@dataclass(frozen=True, slots=True)
class Records:
    """Records in two sets of arrays, between which passes move them; `kinds[0]` holds the key.

    `shift` is the place of the key's lowest bit, `bits` how many there are.
    """

    kinds: tuple[str, ...]
    shift: int
    bits: int
    count: int

    @property
    def passes(self) -> list[int]:
        """The lowest bit of every digit."""
        return list(range(self.shift, self.shift + self.bits, DIGIT))

    @property
    def nbytes(self) -> int:
        """The bytes of one set, each array padded to 64."""
        return sum(self._padded(kind) for kind in self.kinds)

    @property
    def scratch(self) -> int:
        """The bytes of two sets and of the counts."""
        return 2 * self.nbytes + 4 * BUCKETS * len(self.passes)

    def arrays(self, code: Code, base: str) -> list[str]:
        """The arrays of a set that begins at a place."""
        found, offset = [], 0
        for kind in self.kinds:
            found.append(address(code, base, offset, "i8"))
            offset += self._padded(kind)
        return found

    def _padded(self, kind: str) -> int:
        return -(-self.count * int(kind[1:]) // 8 // 64) * 64 + 64


class Radix:
    """Sorts the records that lie in the first set; `now` then holds the place of the sorted set."""

    def __init__(self, code: Code, records: Records, base: str) -> None:
        self.code = code
        self.records = records
        self.first = base
        self.second = address(code, base, records.nbytes, "i8")
        self.counts = address(code, base, 2 * records.nbytes, "i8")
        self.now = code.let("alloca ptr, align 8", "now")
        self.other = code.let("alloca ptr, align 8", "other")

    def begin(self) -> list[str]:
        """Start with the first set; its arrays, to be filled."""
        self.code.do(f"store ptr {self.first}, ptr {self.now}, align 8")
        self.code.do(f"store ptr {self.second}, ptr {self.other}, align 8")
        return self.records.arrays(self.code, self.first)

    def current(self) -> list[str]:
        """The arrays of the set that is sorted so far."""
        return self._set(self.now)

    def _set(self, slot: str) -> list[str]:
        base = self.code.let(f"load ptr, ptr {slot}, align 8")
        return self.records.arrays(self.code, base)

    def sort(self) -> None:
        """Sort, stably."""
        if self.records.count <= FEW:
            self._insert()
            return
        self._count()
        for number, shift in enumerate(self.records.passes):
            self._pass(number, shift)

    # By digits

    def _digit(self, key: str, shift: int) -> str:
        code, kind = self.code, self.records.kinds[0]
        moved = code.let(f"lshr {kind} {key}, {shift}") if shift else key
        masked = code.let(f"and {kind} {moved}, {BUCKETS - 1}")
        return masked if kind == "i64" else code.let(f"zext {kind} {masked} to i64")

    def _count(self) -> None:
        """How many keys have each value of each digit."""
        code, records = self.code, self.records
        size = 4 * BUCKETS * len(records.passes)
        code.declare("declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)")
        code.do(f"call void @llvm.memset.p0.i64(ptr align 4 {self.counts}, i8 0, i64 {size}, i1 0)")
        keys = self.current()[0]
        with code.loop(0, records.count) as loop:
            key = take(code, keys, loop.index, records.kinds[0])
            for number, shift in enumerate(records.passes):
                place = plus(code, self._digit(key, shift), number * BUCKETS)
                before = take(code, self.counts, place, "i32")
                put(code, code.let(f"add i32 {before}, 1"), self.counts, place, "i32")

    def _pass(self, number: int, shift: int) -> None:
        """Move records to where their digit belongs, unless all have the same."""
        code, records = self.code, self.records
        counts = address(code, self.counts, 4 * BUCKETS * number, "i8")
        sources = self.current()
        digit = self._digit(take(code, sources[0], 0, records.kinds[0]), shift)
        alike = take(code, counts, digit, "i32")
        with code.when(code.let(f"icmp ne i32 {alike}, {records.count}")):
            with code.loop(0, BUCKETS, carried=[("i32", "0")]) as loop:
                own = take(code, counts, loop.index, "i32")
                put(code, loop.carried[0], counts, loop.index, "i32")
                loop.carry(code.let(f"add i32 {loop.carried[0]}, {own}"))
            targets = self._set(self.other)
            with code.loop(0, records.count) as loop:
                record = self._read(sources, loop.index)
                digit = self._digit(record[0], shift)
                place = take(code, counts, digit, "i32")
                put(code, code.let(f"add i32 {place}, 1"), counts, digit, "i32")
                self._write(record, targets, code.let(f"zext i32 {place} to i64"))
            now = code.let(f"load ptr, ptr {self.now}, align 8")
            other = code.let(f"load ptr, ptr {self.other}, align 8")
            code.do(f"store ptr {other}, ptr {self.now}, align 8")
            code.do(f"store ptr {now}, ptr {self.other}, align 8")

    def _read(self, arrays: Sequence[str], index: str) -> list[str]:
        pairs = zip(arrays, self.records.kinds, strict=True)
        return [take(self.code, array, index, kind) for array, kind in pairs]

    def _write(self, record: Sequence[str], arrays: Sequence[str], index: str) -> None:
        for value, array, kind in zip(record, arrays, self.records.kinds, strict=True):
            put(self.code, value, array, index, kind)

    # By insertion

    def _insert(self) -> None:
        """Move each record before those with a larger key."""
        code, records = self.code, self.records
        arrays = self.current()
        key_kind = records.kinds[0]
        with code.loop(1, records.count) as loop:
            record = self._read(arrays, loop.index)
            head, body, done = code.fresh("head"), code.fresh("body"), code.fresh("done")
            before = code.block
            code.do(f"br label %{head}")
            code.start(head)
            place, lower = f"%{code.fresh('j')}", f"%{code.fresh('k')}"
            check = code.fresh("check")
            code.do(f"{place} = phi i64 [{loop.index}, %{before}], [{lower}, %{body}]")
            code.do(f"br i1 {code.let(f'icmp sgt i64 {place}, 0')}, label %{check}, label %{done}")
            code.start(check)
            code.do(f"{lower} = add i64 {place}, -1")
            earlier = self._read(arrays, lower)
            larger = code.let(f"icmp ugt {key_kind} {earlier[0]}, {record[0]}")
            code.do(f"br i1 {larger}, label %{body}, label %{done}")
            code.start(body)
            self._write(earlier, arrays, place)
            code.do(f"br label %{head}")
            code.start(done)
            self._write(record, arrays, place)
