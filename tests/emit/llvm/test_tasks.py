"""How work is handed out: the tasks of lone nodes and of attention, and the memory they take.

Sizes of tasks decide how fast a kernel is, not what it gives. A table shows what moves, and
checksums of the texts that anything does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.checksums import checksum
from tests.emit.llvm.single.lone_nodes import combiner, lone_kernel, node_of
from tests.emit.llvm.single.test_sort import ordering
from tests.kernels.attention_cases import Sizes, backward, forward
from weft.emit.llvm.attention.attention import emit_attention
from weft.emit.llvm.emitted import Emitted
from weft.emit.llvm.jit.processor import ARM_SERVER, Processor
from weft.emit.llvm.single import copies
from weft.emit.llvm.single.emit import emit_single_node
from weft.ir.module import Node
from weft.ir.types import DTYPES, F32, I32, Array, TensorType, type_of
from weft.kernels.attention import Window
from weft.ops.custom_calls.custom import CustomCall
from weft.ops.custom_calls.declaration import config_text
from weft.ops.elementwise.pointwise import Add, Maximum
from weft.ops.index import Gather, GatherDims
from weft.ops.linalg import Cholesky, Fft, TriangularSolve
from weft.ops.random import RngBitGenerator
from weft.ops.reduce import Reduce
from weft.ops.scatter import Scatter, ScatterDims
from weft.ops.shape import Reverse
from weft.ops.slicing import Concatenate, DynamicSlice, DynamicUpdateSlice, Pad
from weft.ops.sort import Sort, TopK
from weft.ops.window import ReduceWindow

GOLDEN = Path(__file__).parents[2] / "golden" / "emit"
WIDE = Processor("x86_64-unknown-linux-gnu", "skylake-avx512", "+avx512f,+avx2,+avx,+fma")
TILES = Processor("x86_64-unknown-linux-gnu", "sapphirerapids", "+amx-bf16,+avx512f,+avx2,+avx")
OLD = Processor("x86_64-unknown-linux-gnu", "haswell", "+avx2,+avx,+fma")
ROWS = ScatterDims((1,), (0,), (), (), (0,), 1)


def zeros(*shape: int, dtype: type = np.float32) -> Array:
    """An array that takes no memory."""
    return np.broadcast_to(dtype(0), shape)


def told(made: Emitted) -> str:
    """Phases, memory and a checksum in a line."""
    phases = "; ".join(f"{p.tasks} by {p.chunk}" for p in made.phases)
    memory = f"{made.scratch} bytes a thread, {made.shared} shared"
    return f"{phases or 'nothing'}, {memory}, {checksum(made.text)}"


def lone_nodes() -> Iterator[tuple[str, Node]]:
    """Nodes by what they do and how large they are."""
    for rows, row in ((1, 7), (1, 3000), (1, 1 << 20), (7, 1 << 17), (9, 1 << 17), (5000, 90)):
        x, at = zeros(rows, row), zeros(rows, 1, dtype=np.int32)
        about = f"{rows}x{row}"
        yield f"sort {about}", node_of(Sort(1, True), x, regions=(ordering(F32),))
        sort = Sort(1, True)
        pairs = ordering(F32, more=1)
        yield (
            f"sort pairs {about}",
            node_of(sort, x, zeros(rows, row, dtype=np.int32), regions=(pairs,)),
        )
        yield f"largest 5 of {about}", node_of(TopK(min(row, 5)), x)
        yield f"largest 300 of {about}", node_of(TopK(min(row, 300)), x)
        yield f"reverse {about}", node_of(Reverse((1,)), x)
        yield f"join {about}", node_of(Concatenate(0), x, x)
        yield f"join sides of {about}", node_of(Concatenate(1), x, x)
        yield f"pad {about}", node_of(Pad((1, 2), (0, 3), (0, 1)), x, np.float32(0))
        gather = Gather(GatherDims((1,), (0,), (), (), (0,), 1), (1, row))
        yield f"gather rows of {about}", node_of(gather, x, at)
        picked = Gather(GatherDims((), (0, 1), (), (), (0, 1), 1), (1, 1))
        yield f"gather elements of {about}", node_of(picked, x, zeros(row, 2, dtype=np.int32))
        scatter = Scatter(ROWS, (type_of(x),))
        yield f"scatter {about}", node_of(scatter, x, at, x, regions=(combiner(Add(), F32),))
        zero = np.int32(0)
        yield f"slice of {about}", node_of(DynamicSlice((1, row)), x, zero, zero)
        yield f"update of {about}", node_of(DynamicUpdateSlice(), x, zeros(1, row), zero, zero)
        for op in (Add(), Maximum()):
            running = ReduceWindow((1, row), (type_of(x),), padding=((0, 0), (row - 1, 0)))
            regions = (combiner(op, F32),)
            yield f"running {op.name} {about}", node_of(running, x, np.float32(0), regions=regions)
        near = ReduceWindow((1, 3), (type_of(x),), padding=((0, 0), (1, 1)))
        yield (
            f"window of 3 {about}",
            node_of(near, x, np.float32(0), regions=(combiner(Maximum(), F32),)),
        )
        for dims, out in (((1,), rows), ((0,), row)):
            reduce = Reduce(dims, (TensorType((out,), I32),))
            given = (zeros(rows, row, dtype=np.int32), np.int32(0))
            yield (
                f"sum {about} along {dims[0]}",
                node_of(reduce, *given, regions=(combiner(Add(), I32),)),
            )
    for batch, size in ((1, 5), (1, 300), (64, 40), (3, 129)):
        x = zeros(batch, size, size)
        yield f"Cholesky {batch}x{size}", node_of(Cholesky(True), x)
        solve = TriangularSolve(True, True, False, "NO_TRANSPOSE")
        yield f"solve {batch}x{size}", node_of(solve, x, zeros(batch, size, 17))
    for batch, rows, columns in ((1, 300, 200), (64, 40, 40), (1000, 3, 5)):
        x, least = zeros(batch, rows, columns), min(rows, columns)
        about, real = f"{batch}x{rows}x{columns}", type_of(x)
        numbers = [TensorType((batch, n), I32) for n in (least, rows)]
        yield f"LU {about}", node_of(CustomCall("weft.lu", (real, *numbers)), x)
        taus = TensorType((batch, least), F32)
        yield f"QR {about}", node_of(CustomCall("weft.qr", (real, taus)), x)
        shapes = ((least,), (rows, least), (least, columns))
        outs = tuple(TensorType((batch, *shape), F32) for shape in shapes)
        values = config_text(full_matrices=False, vectors=True, first=0)
        if least <= 96:  # larger ones are LAPACK's
            yield f"SVD {about}", node_of(CustomCall("weft.svd", outs, backend_config=values), x)
        if rows == columns:
            outs = (real, TensorType((batch, rows), F32))
            yield f"eigen {about}", node_of(CustomCall("weft.eigh", outs), x)
    for batch, length in ((1, 8), (3, 1000), (1000, 60), (1, 1 << 16), (2, 1331)):
        x = zeros(batch, length, dtype=np.complex64)
        yield f"FFT {batch}x{length}", node_of(Fft("FFT", (length,)), x)
        real = zeros(batch, length)
        yield f"real FFT {batch}x{length}", node_of(Fft("RFFT", (length,)), real)
    state = np.zeros(2, np.uint64)
    for size in (3, 5000, 1 << 21):
        for algorithm in ("THREE_FRY", "PHILOX"):
            out = TensorType((size,), DTYPES["ui32"])
            yield (
                f"{algorithm} {size}",
                node_of(RngBitGenerator(algorithm, (type_of(state), out)), state),
            )


@pytest.fixture(autouse=True)
def on_another_machine(monkeypatch):
    monkeypatch.setenv("WEFT_THREADS", "4")
    monkeypatch.setattr(copies, "host", lambda: WIDE)


def test_lone_nodes(golden: Callable[[Path, str], None]):
    found = [(name, emit_single_node(lone_kernel(node), WIDE)) for name, node in lone_nodes()]
    lines = [f"{name}: {told(made)}" for name, made in found]
    golden(GOLDEN / "lone_tasks.txt", "\n".join(lines) + "\n")


ATTENTION = (  # queries, keys and depths
    (8, 256, 64),
    (9, 256, 64),
    (8, 257, 64),
    (16, 64, 64),
    (17, 64, 64),
    (511, 512, 64),
    (512, 512, 64),
    (512, 512, 65),
)


def borders() -> Iterator[tuple[str, Node]]:
    """Nodes on both sides of the sizes from which on they are emitted in another way."""
    zero, add = np.float32(0), (combiner(Add(), F32),)
    for rows, length in ((1, 65535), (1, 65536), (7, 65536), (8, 65536)):
        out, padding = TensorType((rows, length), F32), ((0, 0), (length - 1, 0))
        running = ReduceWindow((1, length), (out,), padding=padding)
        node = node_of(running, zeros(rows, length), zero, regions=add, known=(1,))
        yield f"running sum {rows}x{length}", node
    for length in (96, 97, 65536, 65537):
        x = zeros(3, length)
        yield f"sort {length}", node_of(Sort(1, True), x, regions=(ordering(F32),))
        yield f"largest 64 of {length}", node_of(TopK(64), x)
    for rows, updates, width in (
        (64, 16383, 1),
        (64, 16384, 1),
        (4096, 16384, 1),
        (64, 16384, 256),
        (64, 16384, 257),
        (8192, 16384, 1),
    ):
        x, at = zeros(rows, width), zeros(updates, 1, dtype=np.int32)
        scatter = Scatter(ROWS, (type_of(x),))
        about = f"scatter {updates} to {rows} of {width}"
        yield about, node_of(scatter, x, at, zeros(updates, width), regions=add)
    large = WIDE.caches.last // 16  # elements of a side that is a quarter of the last cache
    for rows, width in ((large // 512, 512), (large // 512 - 1, 512), (large // 256, 256)):
        x = zeros(rows, width)
        yield f"join sides of {rows}x{width}", node_of(Concatenate(1), x, x)
    for batch, length in ((1, 1024), (1, 2048), (1, 2187), (1, 4096), (15, 240), (64, 17)):
        x = zeros(batch, length, dtype=np.complex64)
        yield f"FFT {batch}x{length}", node_of(Fft("FFT", (length,)), x)
    for batch, length in ((7, 128), (8, 128), (16, 255), (16, 256)):
        x = zeros(batch, length, dtype=np.complex64)
        yield f"FFT {batch}x{length}", node_of(Fft("FFT", (length,)), x)
    for size in (16, 17, 128):
        outs = (TensorType((2, size, size), F32), TensorType((2, size), F32))
        yield f"eigen {size}", node_of(CustomCall("weft.eigh", outs), zeros(2, size, size))


def test_borders(golden: Callable[[Path, str], None]):
    lines = []
    for name, node in borders():
        made = emit_single_node(lone_kernel(node), WIDE)
        lines.append(f"{name}: {told(made)}, {len(made.text.splitlines())} lines")
    for queries, keys, depth in ATTENTION:
        for name, processor in (("wide", WIDE), ("tiles", TILES)):
            sizes = Sizes((2,), (False,), queries, keys, depth, depth)
            made = emit_attention(forward(sizes, DTYPES["bf16"]), processor)
            about = f"attention {queries}x{keys}x{depth} {name}"
            lines.append(f"{about}: {told(made)}, {len(made.text.splitlines())} lines")
    golden(GOLDEN / "borders.txt", "\n".join(lines) + "\n")


def test_attention(golden: Callable[[Path, str], None]):
    lines = []
    for queries, keys, depth in (
        (1, 3000, 64),
        (8, 40, 16),
        (17, 300, 64),
        (300, 300, 80),
        (2048, 2048, 128),
    ):
        for name, dtype, window in (
            ("f32", "f32", Window()),
            ("bf16", "bf16", Window()),
            ("causal", "f32", Window(None, 0)),
            ("near", "bf16", Window(64, 0)),
        ):
            sizes = Sizes((2, 8), (False, True), queries, keys, depth, depth)
            kernel = forward(sizes, DTYPES[dtype], lse=True, window=window)
            for chip, processor in (
                ("wide", WIDE),
                ("tiles", TILES),
                ("old", OLD),
                ("arm", ARM_SERVER),
            ):
                about = f"{name} {queries}x{keys}x{depth} {chip}"
                lines.append(f"{about}: {told(emit_attention(kernel, processor))}")
            made = emit_attention(backward(kernel), WIDE)
            lines.append(f"{name} {queries}x{keys}x{depth} back: {told(made)}")
    golden(GOLDEN / "attention_tasks.txt", "\n".join(lines) + "\n")
