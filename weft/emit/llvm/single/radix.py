"""Sorting of records by unsigned integer keys: LSD radix sort, or rank counting for few."""

from __future__ import annotations

from collections.abc import Sequence

from weft.emit.llvm.writer.code import Writer
from weft.emit.llvm.writer.elements import address, put, take
from weft.emit.llvm.writer.nest import larger, plus, smaller
from weft.emit.llvm.writer.vector import Vector, Vectors
from weft.records import dataclass

FEW = 96  # records up to which ranks are counted
_MANY = 1 << 16  # records up to which fewer passes with longer digits are used
_BLOCK = 32  # records ranked side by side


@dataclass(frozen=True, slots=True)
class Records:
    """Records in two sets of arrays for ping-pong passes; `kinds[0]` holds the key.

    `shift` is the position of the key's lowest bit, `bits` its width; the bits below hold the
    record's index, if anything, so that all records are distinct. `count` is the capacity.
    """

    kinds: tuple[str, ...]
    shift: int
    bits: int
    count: int

    @property
    def digit(self) -> int:
        """The bits of one pass."""
        # Digits of 8 bits have histograms that stay in L1; for many records fewer passes are worth
        # more.
        # The bits in equal digits of at most 11: 2,048 counters of 4 bytes, a quarter of an L1
        # cache of 32 KiB, and 3 passes for 32 bits.
        return 8 if self.count < _MANY else -(-self.bits // -(-self.bits // 11))

    @property
    def buckets(self) -> int:
        """The number of buckets of a digit."""
        return 1 << self.digit

    @property
    def passes(self) -> list[int]:
        """The lowest bit of every digit."""
        return list(range(self.shift, self.shift + self.bits, self.digit))

    @property
    def nbytes(self) -> int:
        """The bytes of one set, each array padded to whole blocks."""
        return sum(self._padded(kind) for kind in self.kinds)

    @property
    def scratch(self) -> int:
        """The bytes of two sets and the histograms."""
        return 2 * self.nbytes + 4 * self.buckets * len(self.passes)

    def arrays(self, code: Writer, base: str) -> list[str]:
        """The arrays of a set."""
        addresses, offset = [], 0
        for kind in self.kinds:
            addresses.append(address(code, base, offset, "i8"))
            offset += self._padded(kind)
        return addresses

    def _padded(self, kind: str) -> int:
        # A block more: ranks are counted in whole vectors, which read past the last record.
        return (-(-self.count // _BLOCK) + 1) * _BLOCK * int(kind[1:]) // 8


def records_of(bits: int, count: int) -> Records:
    """The record format for keys with so many bits, and indices of so many elements."""
    # Key and index in one word: one store for each record and pass.
    if bits <= 32:
        return Records(("i64",), 32, bits, count)
    return Records(("i64", "i32"), 0, bits, count)


def record(v: Vectors, records: Records, key: Vector, place: Vector) -> list[Vector]:
    """The record of a key and an index, both i64."""
    if len(records.kinds) > 1:
        return [key, v.cast("trunc", place, "i32")]
    return [v.binary("or", v.binary("shl", key, v.constant(records.shift, "i64")), place)]


def place_of(code: Writer, records: Records, arrays: Sequence[str], index: str) -> str:
    """The element index in a record."""
    if len(records.kinds) > 1:
        return code.let(f"zext i32 {take(code, arrays[1], index, 'i32')} to i64")
    return code.let(f"and i64 {take(code, arrays[0], index, 'i64')}, {(1 << records.shift) - 1}")


class Radix:
    """Sorts the records of the first set; `now` then holds the address of the sorted set."""

    def __init__(self, code: Writer, records: Records, base: str) -> None:
        self.code = code
        self.records = records
        self.first = base
        self.second = address(code, base, records.nbytes, "i8")
        self.counts = address(code, base, 2 * records.nbytes, "i8")
        self.now = code.let("alloca ptr, align 8", "now")
        self.other = code.let("alloca ptr, align 8", "other")

    def begin(self) -> list[str]:
        """Start with the first set; returns its arrays to be filled."""
        self.code.do(f"store ptr {self.first}, ptr {self.now}, align 8")
        self.code.do(f"store ptr {self.second}, ptr {self.other}, align 8")
        return self.records.arrays(self.code, self.first)

    def current(self) -> list[str]:
        """The arrays of the current set."""
        return self._set(self.now)

    def _set(self, slot: str) -> list[str]:
        base = self.code.let(f"load ptr, ptr {slot}, align 8")
        return self.records.arrays(self.code, base)

    def _swap(self) -> None:
        now, other = (
            self.code.let(f"load ptr, ptr {slot}, align 8") for slot in (self.now, self.other)
        )
        self.code.do(f"store ptr {other}, ptr {self.now}, align 8")
        self.code.do(f"store ptr {now}, ptr {self.other}, align 8")

    def sort(self, count: str | None = None) -> None:
        """Sort the records stably; all of them if no count (above 0) is given."""
        if self.records.count <= FEW:
            self._by_rank(count or str(self.records.count))
        else:
            self._by_digits(count or str(self.records.count))

    # Radix passes

    def _by_digits(self, count: str) -> None:
        self._count(count)
        for number, shift in enumerate(self.records.passes):
            self._pass(number, shift, count)

    def _digit(self, key: str, shift: int) -> str:
        code, kind = self.code, self.records.kinds[0]
        moved = code.let(f"lshr {kind} {key}, {shift}") if shift else key
        low = code.let(f"and {kind} {moved}, {self.records.buckets - 1}")
        return low if kind == "i64" else code.let(f"zext {kind} {low} to i64")

    def _count(self, count: str) -> None:
        """The histograms of all digits."""
        code, records = self.code, self.records
        size = 4 * records.buckets * len(records.passes)
        code.declare("declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)")
        code.do(f"call void @llvm.memset.p0.i64(ptr align 4 {self.counts}, i8 0, i64 {size}, i1 0)")
        # One pass counts all digits: a histogram does not depend on the order of records.
        keys = self.current()[0]
        with code.loop(0, count) as loop:
            key = take(code, keys, loop.index, records.kinds[0])
            for number, shift in enumerate(records.passes):
                place = plus(code, self._digit(key, shift), number * records.buckets)
                before = take(code, self.counts, place, "i32")
                put(code, code.let(f"add i32 {before}, 1"), self.counts, place, "i32")

    def _pass(self, number: int, shift: int, count: str) -> None:
        """Scatter records by a digit, unless all have the same."""
        code, records = self.code, self.records
        counts = address(code, self.counts, 4 * records.buckets * number, "i8")
        sources = self.current()
        digit = self._digit(take(code, sources[0], 0, records.kinds[0]), shift)
        # A bucket that holds every record: the pass would move nothing.
        alike = code.let(f"zext i32 {take(code, counts, digit, 'i32')} to i64")
        with code.when(code.let(f"icmp ne i64 {alike}, {count}")):
            # Exclusive prefix sum: each count becomes the first index of its bucket.
            with code.loop(0, records.buckets, carried=[("i32", "0")]) as loop:
                own = take(code, counts, loop.index, "i32")
                put(code, loop.carried[0], counts, loop.index, "i32")
                loop.carry(code.let(f"add i32 {loop.carried[0]}, {own}"))
            targets = self._set(self.other)
            with code.loop(0, count) as loop:
                moved_record = self._read(sources, loop.index)
                digit = self._digit(moved_record[0], shift)
                place = take(code, counts, digit, "i32")
                put(code, code.let(f"add i32 {place}, 1"), counts, digit, "i32")
                self._write(moved_record, targets, code.let(f"zext i32 {place} to i64"))
            self._swap()

    def _read(self, arrays: Sequence[str], index: str) -> list[str]:
        pairs = zip(arrays, self.records.kinds, strict=True)
        return [take(self.code, array, index, kind) for array, kind in pairs]

    def _write(self, values: Sequence[str], arrays: Sequence[str], index: str) -> None:
        for value, array, kind in zip(values, arrays, self.records.kinds, strict=True):
            put(self.code, value, array, index, kind)

    # Rank counting

    def _by_rank(self, count: str) -> None:
        """Place each record at its rank: the number of records before it."""
        code, kind = self.code, self.records.kinds[0]
        sources, targets = self.current(), self._set(self.other)
        lanes = min(_BLOCK, 1 << (self.records.count - 1).bit_length())
        v = Vectors(code, max(2, lanes))
        with code.loop(0, count, v.width) as block:
            own = v.load(v.at(sources[0], block.index, kind), kind)
            first = smaller(code, block.index, count)
            last = smaller(code, plus(code, block.index, v.width), count)
            zero = v.constant(0, kind)
            # Stability: records before the block come first also if equal.
            ranks = self._ranks(v, own, sources[0], ("0", first), "ule", zero)
            ranks = self._ranks_inside(v, own, sources[0], (first, last), ranks)
            ranks = self._ranks(v, own, sources[0], (last, count), "ult", ranks)
            here = larger(code, code.let(f"sub nsw i64 {last}, {first}"), 0)
            # The histograms are not used by this way of sorting: their memory is free.
            v.store(ranks, self.counts)
            with code.loop(0, here) as loop:
                rank = take(code, self.counts, loop.index, kind)
                if kind != "i64":
                    rank = code.let(f"zext {kind} {rank} to i64")
                self._write(self._read(sources, plus(code, first, loop.index)), targets, rank)
        self._swap()

    def _ranks(
        self, v: Vectors, own: Vector, keys: str, part: tuple[str, str], how: str, ranks: Vector
    ) -> Vector:
        """Add the number of records of a part that come before each of the own ones."""
        code = self.code
        with code.loop(*part, carried=[(ranks.type, ranks.text)]) as loop:
            other = v.splat(Vector(take(code, keys, loop.index, own.kind), own.kind))
            # sext of i1 is -1 or 0: subtracting it counts
            before = v.cast("sext", v.compare(how, other, own), own.kind)
            loop.carry(v.sub(Vector(loop.carried[0], own.kind, v.width), before).text)
        return Vector(loop.carried[0], own.kind, v.width)

    def _ranks_inside(
        self, v: Vectors, own: Vector, keys: str, part: tuple[str, str], ranks: Vector
    ) -> Vector:
        """The same inside of the block, where equal keys compare by position."""
        code = self.code
        with code.loop(*part, carried=[(ranks.type, ranks.text)]) as loop:
            other = v.splat(Vector(take(code, keys, loop.index, own.kind), own.kind))
            number = code.let(f"sub nsw i64 {loop.index}, {part[0]}")
            earlier = v.compare("slt", v.splat(Vector(number, "i64")), v.lanes())
            equal = v.binary("and", v.compare("eq", other, own), earlier)
            before = v.binary("or", v.compare("ult", other, own), equal)
            added = v.cast("sext", before, own.kind)
            loop.carry(v.sub(Vector(loop.carried[0], own.kind, v.width), added).text)
        return Vector(loop.carried[0], own.kind, v.width)
