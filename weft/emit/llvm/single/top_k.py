"""Top k: a row is scanned for elements that beat the current k-th best; candidates are buffered.

Of equal elements the earlier one wins, so a later one must be strictly better than the k-th best;
in unsorted rows that is rare.
"""

from __future__ import annotations

from weft.emit.llvm.emitted import Emitted
from weft.emit.llvm.single.comparator import in_order, key_bits
from weft.emit.llvm.single.radix import Radix, place_of, record, records_of
from weft.emit.llvm.writer import storage
from weft.emit.llvm.writer.code import Writer, module_text
from weft.emit.llvm.writer.elements import address, bits_of, put, take
from weft.emit.llvm.writer.nest import (
    function,
    lines,
    plus,
    pointers,
    vectors_and_rest,
)
from weft.emit.llvm.writer.vector import Vector, Vectors, suffix
from weft.kernels.nest.loop_dims import LoopDim
from weft.kernels.single_node import SingleNode, strides
from weft.ops.sort import TopK

_LANES = 16
_ROOM = 64  # buffered records, besides k


def top_k(kernel: SingleNode) -> Emitted:
    """Rows of the last dim, one a task."""
    op, (operand, values, _) = kernel.op, kernel.operands
    assert isinstance(op, TopK)
    if not values.size:
        return Emitted("", ())
    best = _Best(kernel, op.k)
    steps = [strides(o.shape) for o in kernel.operands]
    sizes = [*kernel.devices, *operand.shape[kernel.lead : -1]]
    dims = [LoopDim(n, tuple([s[d] for s in steps])) for d, n in enumerate(sizes)]
    tasks = lines([*dims, LoopDim(1, (0, 0, 0))], best.cost)
    code, buffers = best.code, best.buffers
    with tasks.each(code) as (offsets, _, _):
        kind = bits_of(operand)
        row = address(code, buffers[0], offsets[0], kind)

        def give(place: str, rank: str) -> None:
            value = take(code, row, place, kind)
            put(code, value, buffers[1], plus(code, offsets[1], rank), kind)
            number = code.let(f"trunc i64 {place} to i32")
            put(code, number, buffers[2], plus(code, offsets[2], rank), "i32")

        if op.k == 1:
            give(best.first(row), "0")
        else:
            best.row(row)
            with code.loop(0, op.k) as loop:
                give(place_of(code, best.records, best.sorter.current(), loop.index), loop.index)
    scratch = best.records.scratch if op.k > 1 else 0
    return Emitted(module_text(code), (tasks.phase(code.name),), scratch=scratch)


class _Best:
    """The function that finds the top k of a row."""

    def __init__(self, kernel: SingleNode, k: int) -> None:
        self.k = k
        self.dtype = kernel.operands[0].dtype
        self.length = kernel.operands[0].shape[-1]
        # A sort leaves k records: the next one is due after k + _ROOM candidates at least.
        self.room = 2 * k + _ROOM
        self.scans = 2 * self.room < self.length
        bits = key_bits(self.dtype)
        self.records = records_of(bits, self.room if self.scans else self.length)
        self.cost = (2 if self.scans or k == 1 else 16) * self.length
        self.code = function(kernel.name)
        self.buffers = pointers(self.code, 3)
        self.sorter = Radix(self.code, self.records, "%scratch")
        self.slot = self.code.let("alloca i64, align 8")  # number of records
        self.worst = self.code.let("alloca i64, align 8")  # key of the k-th best

    def first(self, row: str) -> str:
        """The index of the best element of a row: the best of every lane, then of all."""
        code, lanes = self.code, min(_LANES, 1 << self.length.bit_length() - 1)
        # All bits set is the worst key: keys are compared without sign.
        best, place = Vector("-1", "i64"), Vector("0", "i64")
        whole = self.length // lanes * lanes
        for width, begin, end in ((lanes, 0, whole), (1, whole, self.length)):
            v = Vectors(code, width)
            carried = [(x.type, x.text) for x in (v.splat(best), v.splat(place))]
            with code.loop(begin, end, width, carried=carried) as loop:
                held, at = (Vector(text, "i64", width) for text in loop.carried)
                key, index = self._keys(v, row, loop.index)
                # Strictly better: of equal elements the first wins, as their indices grow.
                better = v.compare("ult", key, held)
                loop.carry(v.select(better, key, held).text, v.select(better, index, at).text)
            held, at = (Vector(text, "i64", width) for text in loop.carried)
            best = v.total("umin", held)
            among = v.compare("eq", held, v.splat(best))
            place = v.total("umin", v.select(among, at, v.constant(-1, "i64")))
        return place.text

    def row(self, row: str) -> None:
        """Leave the top k of a row in the records, sorted."""
        arrays = self.sorter.begin()
        first = self.room if self.scans else self.length
        for width, index in vectors_and_rest(self.code, "0", str(first), _LANES):
            v = Vectors(self.code, width)
            made = record(v, self.records, *self._keys(v, row, index))
            for value, array in zip(made, arrays, strict=True):
                v.store(value, v.at(array, index, value.kind))
        self._set_count(str(first))
        self.sorter.sort(str(first))
        if self.scans:
            self._scan(row, first)

    def _keys(self, v: Vectors, row: str, index: str) -> tuple[Vector, Vector]:
        """Keys, smaller for better elements, and their indices."""
        (held,) = storage.load(v, row, index, self.dtype)
        key = in_order(v, held, self.dtype, total=True)
        key = v.cast("zext", v.binary("xor", key, v.constant(-1, key.kind)), "i64")
        return key, v.add(v.splat(Vector(index, "i64")), v.lanes())

    # The rest of the row

    def _scan(self, row: str, first: int) -> None:
        """Test many elements at once; append only where one beats the k-th best."""
        self._renew()
        code, many = self.code, 4 * _LANES
        for width, index in vectors_and_rest(code, str(first), str(self.length), many):
            v = Vectors(code, width)
            hit = self._hits(v, row, index)
            with code.when(_any(v, hit)):
                if width == 1:
                    self._append(v, row, index)
                    continue
                with code.loop(index, plus(code, index, many), _LANES) as loop:
                    self._append(Vectors(code, _LANES), row, loop.index)
        count = self._count()
        self.sorter.sort(count)

    def _hits(self, v: Vectors, row: str, index: str) -> Vector:
        key, _ = self._keys(v, row, index)
        worst = _loaded(self.code, self.worst)
        # Strictly better: of equal elements the first wins, and earlier ones are in already.
        return v.compare("ult", key, v.splat(Vector(worst, "i64")))

    def _append(self, v: Vectors, row: str, index: str) -> None:
        """Append candidate records, if there is room for a whole vector."""
        code = self.code
        full = code.let(f"icmp sgt i64 {self._count()}, {self.room - v.width}")
        with code.when(full):
            self.sorter.sort(self._count())
            self._renew()
        # Tested again: the k-th best may be another one now.
        hit = self._hits(v, row, index)
        made = record(v, self.records, *self._keys(v, row, index))
        count = self._count()
        for value, array in zip(made, self.sorter.current(), strict=True):
            _compress(v, value, v.at(array, count, value.kind), hit)
        self._set_count(plus(code, count, _how_many(v, hit)))

    def _renew(self) -> None:
        """Keep the top k of sorted records, and update the threshold."""
        code = self.code
        last = take(code, self.sorter.current()[0], self.k - 1, "i64")
        if self.records.shift:
            # The threshold is a key alone: the index below it would let an equal element in.
            last = code.let(f"lshr i64 {last}, {self.records.shift}")
        code.do(f"store i64 {last}, ptr {self.worst}, align 8")
        self._set_count(str(self.k))

    def _count(self) -> str:
        return _loaded(self.code, self.slot)

    def _set_count(self, count: str) -> None:
        self.code.do(f"store i64 {count}, ptr {self.slot}, align 8")


def _loaded(code: Writer, slot: str) -> str:
    """The number in a stack slot."""
    return code.let(f"load i64, ptr {slot}, align 8")


def _any(v: Vectors, mask: Vector) -> str:
    if v.width == 1:
        return mask.text
    return v.code.let(f"icmp ne i{v.width} {_packed(v, mask)}, 0")


def _packed(v: Vectors, mask: Vector) -> str:
    return v.code.let(f"bitcast {mask.typed} to i{v.width}")


def _how_many(v: Vectors, mask: Vector) -> str:
    """The population count of a mask."""
    if v.width == 1:
        return v.code.let(f"zext i1 {mask.text} to i64")
    kind = f"i{v.width}"
    count = v.code.call(kind, f"llvm.ctpop.{kind}", (kind, _packed(v, mask)))
    return v.code.let(f"zext {kind} {count} to i64")


def _compress(v: Vectors, value: Vector, place: str, mask: Vector) -> None:
    """Store the active lanes contiguously (compress); what follows them is overwritten."""
    code = v.code
    if v.width == 1:
        with code.when(mask.text):
            v.store(value, place)
        return
    # In registers, and whole ones are stored: some processors take over a hundred cycles for a
    # compressing store to memory.
    lanes = min(v.width, 512 // value.bits)
    part = Vectors(code, lanes)
    name = f"llvm.experimental.vector.compress.{suffix(value.kind, lanes)}"
    for first in range(0, v.width, lanes):
        order = range(first, first + lanes)
        some, active = v.shuffle(value, value, order), v.shuffle(mask, mask, order)
        code.declare(f"declare {some.type} @{name}({some.type}, {active.type}, {some.type})")
        given = f"{some.typed}, {active.typed}, {some.type} poison"
        packed = Vector(code.let(f"call {some.type} @{name}({given})"), value.kind, lanes)
        part.store(packed, place)
        place = part.at(place, _how_many(part, active), value.kind)
