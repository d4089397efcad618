"""Sort: by radix keys if the comparator has keys, else by merging."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import TypeAlias

from weft.emit.llvm.emitted import Emitted
from weft.emit.llvm.single.comparator import SortKey, element_bits, is_element, key_of, sort_keys
from weft.emit.llvm.single.merge import merge_rows
from weft.emit.llvm.single.radix import Radix, Records, place_of, record, records_of
from weft.emit.llvm.writer import storage
from weft.emit.llvm.writer.code import Writer, module_text
from weft.emit.llvm.writer.elements import address, bits_of, put, take
from weft.emit.llvm.writer.nest import (
    function,
    lines,
    plus,
    pointers,
    times,
    vectors_and_rest,
)
from weft.emit.llvm.writer.vector import Vector, Vectors
from weft.ir.types import DTYPES
from weft.kernels.nest.loop_dims import LoopDim
from weft.kernels.single_node import SingleNode, strides
from weft.ops.sort import Sort

_LANES = 16
Order: TypeAlias = tuple[Records, list[str]]  # an order found so far, and its location


def sort(kernel: SingleNode) -> Emitted:
    """Sorted rows, one a task."""
    op = kernel.op
    assert isinstance(op, Sort)
    if not kernel.outputs[0].size:
        return Emitted("", ())
    rows = SortedRows(kernel, op.dimension)
    keys = sort_keys(kernel.regions[0])
    return rows.by_keys(keys) if keys is not None else merge_rows(rows)


class SortedRows:
    """The rows to sort: their length, and the strides in every operand."""

    def __init__(self, kernel: SingleNode, dimension: int) -> None:
        self.kernel = kernel
        steps = [strides(o.shape) for o in kernel.operands]
        shape = kernel.outputs[0].shape
        dim = kernel.lead + dimension % (len(shape) - kernel.lead)
        self.length = shape[dim]
        self.steps = tuple([s[dim] for s in steps])
        self.count = len(kernel.inputs)
        dims = [LoopDim(n, tuple([s[d] for s in steps])) for d, n in enumerate(shape) if d != dim]
        none = LoopDim(1, (0,) * len(steps))
        cost = self.length * 64  # a row costs far more than its bytes
        self.tasks = lines([*dims, none], cost)

    def by_keys(self, keys: Sequence[SortKey]) -> Emitted:
        """Sort records of keys and indices; or keys alone, if elements can be rebuilt from them."""
        kernel = self.kernel
        code = function(kernel.name, excess_precision=kernel.excess_precision)
        buffers = pointers(code, len(self.kernel.operands))
        groups = grouped(keys)
        kinds = [records_of(sum(k.bits for k in group), self.length) for group in groups]
        sorters, scratch = [], 0
        for records in kinds:  # one order for each key group, chained by lookups
            base = code.let(f"getelementptr i8, ptr %scratch, i64 {scratch}")
            sorters.append(Radix(code, records, base))
            scratch += -(-records.scratch // 64) * 64
        # One operand sorted by its own value: the keys are the elements, and no index need travel
        # along.
        is_bare = self.count == 1 and len(keys) == 1 and is_element(keys[0])
        bare = _Bare(self, code, keys[0], buffers) if is_bare else None
        with self.tasks.each(code) as (offsets, _, _), ExitStack() as stack:
            if bare is not None:
                stack.enter_context(code.when(bare.sort(offsets)))
            orders: list[Order] = []
            # Least significant keys first, as in LSD radix sort: each later order is stable, and
            # keeps theirs.
            for group, sorter in zip(reversed(groups), reversed(sorters), strict=True):
                arrays = sorter.begin()
                self._fill(code, group, sorter.records, arrays, (buffers, offsets), orders)
                sorter.sort()
                orders.append((sorter.records, sorter.current()))
            self._place(code, orders, buffers, offsets)
        return Emitted(module_text(code), (self.tasks.phase(code.name),), scratch=scratch)

    def _fill(
        self,
        code: Writer,
        keys: Sequence[SortKey],
        records: Records,
        arrays: list[str],
        rows: tuple[list[str], list[str]],
        orders: Sequence[Order],
    ) -> None:
        """Fill the records of a row: in its order, or in one found for less significant keys.

        A record holds its position in that order, which makes the sort stable.
        """
        # Through an earlier order each element is looked up by its own index: nothing to vectorize.
        width = 1 if orders else _LANES
        for lanes, index in vectors_and_rest(code, "0", str(self.length), width):
            v = Vectors(code, lanes)
            ranks = v.add(v.splat(Vector(index, "i64")), v.lanes())
            places = Vector(original(code, orders, index), "i64") if orders else ranks
            key = self._key(v, keys, rows, places)
            made = record(v, records, key, ranks)
            for value, array in zip(made, arrays, strict=True):
                v.store(value, v.at(array, index, value.kind))

    def _key(
        self,
        v: Vectors,
        keys: Sequence[SortKey],
        rows: tuple[list[str], list[str]],
        places: Vector,
    ) -> Vector:
        """The keys of elements packed into an i64, most significant first."""
        packed = v.constant(0, "i64")
        buffers, offsets = rows
        for key in keys:
            n = key.operand
            operand = self.kernel.operands[n]
            base = address(v.code, buffers[n], offsets[n], bits_of(operand))
            at = v.mul(places, v.constant(self.steps[n], "i64"))
            own = key_of(v, key, storage.gather(v, base, at, operand.dtype))
            own = v.cast("zext", own, "i64")
            if packed.text != v.constant(0, "i64").text:
                # Unsigned keys side by side compare lexicographically.
                packed = v.binary("shl", packed, v.constant(key.bits, "i64"))
            packed = v.binary("or", packed, own)
        return packed

    def _place(
        self,
        code: Writer,
        orders: Sequence[Order],
        buffers: list[str],
        offsets: list[str],
    ) -> None:
        """Store the elements in the final order."""
        with code.loop(0, self.length) as loop:
            place = original(code, orders, loop.index)
            for n in range(self.count):
                self.move(code, n, place, loop.index, buffers, offsets)

    def move(
        self, code: Writer, n: int, place: str, index: str, buffers: list[str], offsets: list[str]
    ) -> None:
        """Store one element of an input at its place in the result."""
        kind, out = bits_of(self.kernel.operands[n]), self.count + n
        source = plus(code, offsets[n], times(code, place, self.steps[n]))
        target = plus(code, offsets[out], times(code, index, self.steps[out]))
        put(code, take(code, buffers[n], source, kind), buffers[out], target, kind)


class _Bare:
    """Rows sorted by keys alone, which moves much less data.

    Some elements share a key (zeros of either sign, NaNs with different bits); rows with such
    elements take the general path.
    """

    def __init__(self, rows: SortedRows, code: Writer, key: SortKey, buffers: list[str]) -> None:
        self.rows = rows
        self.code = code
        self.key = key
        self.buffers = buffers
        kind = "i32" if key.bits <= 32 else "i64"
        self.radix = Radix(code, Records((kind,), 0, key.bits, rows.length), "%scratch")
        self.lost = code.let("alloca i1, align 1")

    def sort(self, offsets: list[str]) -> str:
        """Sort a row, unless it has elements that share a key; returns whether it has."""
        code, length = self.code, str(self.rows.length)
        keys = self.radix.begin()[0]
        code.do(f"store i1 false, ptr {self.lost}, align 1")
        for width, index in vectors_and_rest(code, "0", length, _LANES):
            self._fill(Vectors(code, width), keys, index, offsets)
        lost = code.let(f"load i1, ptr {self.lost}, align 1")
        with code.when(code.let(f"xor i1 {lost}, true")):
            self.radix.sort()
            keys = self.radix.current()[0]
            for width, index in vectors_and_rest(code, "0", length, _LANES):
                self._write(Vectors(code, width), keys, index, offsets)
        return lost

    def _fill(self, v: Vectors, keys: str, index: str, offsets: list[str]) -> None:
        """Store the keys of contiguous elements, and flag those that cannot be rebuilt."""
        operand, step = self.rows.kernel.operands[0], self.rows.steps[0]
        base = address(self.code, self.buffers[0], offsets[0], bits_of(operand))
        places = v.add(v.splat(Vector(index, "i64")), v.lanes())
        at = v.mul(places, v.constant(step, "i64"))
        bits = DTYPES[f"ui{8 * operand.dtype.numpy.itemsize}"]
        if step == 1:
            held = storage.load(v, base, index, operand.dtype)
            (stored,) = storage.load(v, base, index, bits)
        else:
            held = storage.gather(v, base, at, operand.dtype)
            (stored,) = storage.gather(v, base, at, bits)
        key = key_of(v, self.key, held)
        # A key that does not give back the element's own bits (-0.0, a NaN's payload) would change
        # it.
        differ = v.compare("ne", element_bits(v, self.key, key), stored)
        any_differ = v.total("or", differ)
        before = self.code.let(f"load i1, ptr {self.lost}, align 1")
        now = self.code.let(f"or i1 {before}, {any_differ.text}")
        self.code.do(f"store i1 {now}, ptr {self.lost}, align 1")
        kind = self.radix.records.kinds[0]
        v.store(v.cast("zext", key, kind), v.at(keys, index, kind))

    def _write(self, v: Vectors, keys: str, index: str, offsets: list[str]) -> None:
        """Store contiguous elements rebuilt from keys."""
        out, step = self.rows.kernel.operands[1], self.rows.steps[1]
        kind = self.radix.records.kinds[0]
        key = v.load(v.at(keys, index, kind), kind)
        bits = element_bits(v, self.key, v.cast("trunc", key, f"i{self.key.bits}"))
        base = address(self.code, self.buffers[1], offsets[1], bits_of(out))
        if step == 1:
            v.store(bits, v.at(base, index, bits.kind))
            return
        places = v.add(v.splat(Vector(index, "i64")), v.lanes())
        at = v.mul(places, v.constant(step, "i64"))
        storage.scatter(v, (bits,), base, at, DTYPES[f"u{bits.kind}"])


def original(code: Writer, orders: Sequence[Order], index: str) -> str:
    """The original index of an element, through the chain of orders."""
    for records, arrays in reversed(orders):
        index = place_of(code, records, arrays, index)
    return index


def grouped(keys: Sequence[SortKey]) -> list[list[SortKey]]:
    """Keys grouped so that each group fits into an i64."""
    groups: list[list[SortKey]] = []
    for key in keys:
        # Keys that fit into one word are compared by one sort instead of a chain of two.
        if groups and sum(k.bits for k in groups[-1]) + key.bits <= 64:
            groups[-1].append(key)
        else:
            groups.append([key])
    return groups
