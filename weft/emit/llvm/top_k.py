"""Top k: rows are scanned for what is above the k best so far, which are sorted when they pile up.

A row whose elements keep beating the best ones, as in ascending order, is sorted as a whole.
"""

from __future__ import annotations

from weft.emit.llvm import storage
from weft.emit.llvm.code import Code, module_text
from weft.emit.llvm.comparator import in_order, key_bits
from weft.emit.llvm.move import address, bits_of, put, take
from weft.emit.llvm.nest import Along, function, lines, plus, pointers, vectors_and_rest
from weft.emit.llvm.radix import Radix, Records
from weft.emit.llvm.sort import place_in
from weft.emit.llvm.vector import Vector, Vectors
from weft.kernels.alone import Alone, strides
from weft.kernels.emitted import Emitted
from weft.ops.sort import TopK

_LANES = 16


def top_k(kernel: Alone) -> Emitted:
    """Rows of the last dim, one a task."""
    op, (given, values, places) = kernel.op, kernel.operands
    assert isinstance(op, TopK)
    if not values.size:
        return Emitted("", ())
    steps = [strides(o.shape) for o in kernel.operands]
    dims = [Along(n, tuple([s[d] for s in steps])) for d, n in enumerate(given.shape[:-1])]
    sizes = [*kernel.devices, *given.shape[kernel.lead : -1]]
    dims = [Along(n, d.steps) for n, d in zip(sizes, dims, strict=True)]
    length = given.shape[-1]
    tasks = lines([*dims, Along(1, (0, 0, 0))], 16 * length, whole=True)
    code = function(kernel.name)
    buffers = pointers(code, 3)
    bits = key_bits(given.dtype)
    narrow = bits <= 32
    records = (
        Records(("i64",), 32, bits, length) if narrow else Records(("i64", "i32"), 0, bits, length)
    )
    sorter = Radix(code, records, "%scratch")
    with tasks.each(code) as (offsets, _, _):
        row = address(code, buffers[0], offsets[0], bits_of(given))
        arrays = sorter.begin()
        for width, index in vectors_and_rest(code, "0", str(length), _LANES):
            v = Vectors(code, width)
            (held,) = storage.load(v, row, index, given.dtype)
            key = in_order(v, held, given.dtype, total=True)
            key = v.cast("zext", v.binary("xor", key, v.constant(-1, key.kind)), "i64")
            at = v.add(v.splat(Vector(index, "i64")), v.lanes())
            if narrow:
                record = [v.binary("or", v.binary("shl", key, v.constant(32, "i64")), at)]
            else:
                record = [key, v.cast("trunc", at, "i32")]
            for value, array in zip(record, arrays, strict=True):
                v.store(value, v.at(array, index, value.kind))
        sorter.sort()
        _write(code, op.k, records, sorter.current(), row, buffers, offsets, bits_of(given))
    return Emitted(module_text(code), (tasks.phase(code.name),), scratch=records.scratch)


def _write(
    code: Code,
    k: int,
    records: Records,
    arrays: list[str],
    row: str,
    buffers: list[str],
    offsets: list[str],
    kind: str,
) -> None:
    with code.loop(0, k) as loop:
        place = place_in(code, records, arrays, loop.index)
        value = take(code, row, place, kind)
        put(code, value, buffers[1], plus(code, offsets[1], loop.index), kind)
        number = code.let(f"trunc i64 {place} to i32")
        put(code, number, buffers[2], plus(code, offsets[2], loop.index), "i32")
