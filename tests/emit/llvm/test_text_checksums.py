"""Checksums of the texts of many kernels for several processors: what changes in any of them.

Results see what is wrong, and the tables of instructions and tasks what is slow; this sees what is
neither where tests look, but other than before: lines with the same cause are the change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path

import numpy as np
import pytest

from tests.checksums import checksum
from tests.emit.llvm.corpus import corpus
from tests.emit.llvm.single.lone_nodes import combiner, lone_kernel, node_of
from tests.emit.llvm.single.test_sort import ordering
from tests.emit.llvm.test_tasks import OLD, ROWS, TILES, WIDE, borders, lone_nodes
from tests.kernels.attention_cases import Sizes, backward, forward
from tests.kernels.chains import CHAINS
from weft.emit.llvm.jit.processor import ARM_SERVER
from weft.emit.llvm.single import copies
from weft.emit.llvm.texts import emitted_for
from weft.errors import Unsupported
from weft.ir.module import Node
from weft.ir.types import DTYPES, Array, TensorType, type_of
from weft.kernels.attention import Window
from weft.kernels.group import AnyKernel
from weft.ops.elementwise.pointwise import Add, Maximum, Minimum, Multiply
from weft.ops.index import Gather, GatherDims
from weft.ops.linalg import Cholesky, Fft, TriangularSolve
from weft.ops.reduce import Reduce
from weft.ops.scatter import Scatter
from weft.ops.shape import Reverse
from weft.ops.slicing import Concatenate, DynamicSlice, DynamicUpdateSlice, Pad
from weft.ops.sort import Sort, TopK
from weft.ops.window import ReduceWindow

GOLDEN = Path(__file__).parents[2] / "golden" / "emit"
KINDS = ("f64", "bf16", "f16", "f8E4M3FN", "i8", "i32", "i64", "ui8", "ui32", "i1")


def nodes_of(name: str) -> Iterator[tuple[str, Node]]:
    """Nodes that are kernels by themselves, on elements of a type."""
    dtype = DTYPES[name]

    def zeros(*shape: int) -> Array:
        return np.zeros(shape, dtype.numpy)

    def typed(*shape: int) -> TensorType:
        return TensorType(shape, dtype)

    x, zero, at = zeros(9, 300), zeros(), np.zeros((9, 1), np.int64)
    first = np.int32(0)
    yield "sort", node_of(Sort(1, True), x, regions=(ordering(dtype, "GT"),))
    if not name.startswith("i1"):
        yield "largest", node_of(TopK(7), x)
    yield "reverse", node_of(Reverse((0, 1)), x)
    yield "join", node_of(Concatenate(1), x, zeros(9, 5), x)
    yield "pad", node_of(Pad((1, -2), (0, 3), (2, 1)), x, zero)
    yield "slice", node_of(DynamicSlice((4, 7)), x, first, first)
    yield "update", node_of(DynamicUpdateSlice(), x, zeros(2, 31), first, first)
    gather = Gather(GatherDims((1,), (0,), (), (), (0,), 1), (1, 300))
    yield "gather", node_of(gather, x, at)
    elements = Gather(GatherDims((), (0, 1), (), (), (0, 1), 1), (1, 1))
    yield "gather elements", node_of(elements, x, np.zeros((50, 2), np.uint8))
    for op in (Add(), Maximum(), Minimum(), Multiply()):
        region = (combiner(op, dtype),)
        scatter = Scatter(ROWS, (type_of(x),))
        yield f"scatter {op.name}", node_of(scatter, x, at, x, regions=region)
        for dim, out in ((1, 9), (0, 300)):
            reduce = Reduce((dim,), (typed(out),))
            yield f"reduce {dim} {op.name}", node_of(reduce, x, zero, regions=region)
        running = ReduceWindow((1, 300), (typed(9, 300),), padding=((0, 0), (299, 0)))
        yield f"running {op.name}", node_of(running, x, zero, regions=region)
        near = ReduceWindow((2, 3), (typed(8, 149),), window_strides=(1, 2))
        yield f"window {op.name}", node_of(near, x, zero, regions=region)
    if dtype.is_float and dtype.bits >= 32:
        square = zeros(3, 33, 33)
        for lower in (True, False):
            yield f"Cholesky {lower}", node_of(Cholesky(lower), square)
            for left, how in ((True, "TRANSPOSE"), (False, "NO_TRANSPOSE")):
                solve = TriangularSolve(left, lower, lower, how)
                yield f"solve {lower} {left}", node_of(solve, square, square)
        yield "FFT", node_of(Fft("RFFT", (30,)), zeros(9, 30))


def attention() -> Iterator[tuple[str, AnyKernel]]:
    """Attention of few and of many queries, with shared keys, masks, biases and windows."""
    for queries, keys in ((1, 700), (5, 90), (70, 70)):
        sizes = Sizes((2, 3), (False, True), queries, keys, 24, 40)
        for name, fields in {
            "plain": {},
            "lse": {"lse": True},
            "mask": {"mask": (False, True)},
            "bias": {"bias": (True, False), "lse": True},
            "causal": {"window": Window(None, 0), "lse": True},
            "near": {"window": Window(16, 4), "lse": True},
            "columns": {"layouts": ("ocr", "roc", "ocr", "roc")},
        }.items():
            for dtype in ("f32", "bf16"):
                made = forward(sizes, DTYPES[dtype], **fields)
                yield f"attention {queries}x{keys} {name} {dtype}", made
                if fields.get("lse") and queries > 1:
                    yield f"attention back {queries}x{keys} {name} {dtype}", backward(made)


def typed_kernels() -> Iterator[tuple[str, AnyKernel]]:
    """Single nodes and chains on elements of all types."""
    for name in KINDS:
        for what, node in nodes_of(name):
            yield f"{what} {name}", lone_kernel(node)
        if DTYPES[name].is_float:
            for what, made in CHAINS.items():
                yield f"{what} {name}", made(7, 200, DTYPES[name]).kernel()


def single_nodes() -> Iterator[tuple[str, AnyKernel]]:
    for name, node in chain(lone_nodes(), borders()):
        yield name, lone_kernel(node)


@pytest.mark.parametrize("kernels", [corpus, single_nodes, typed_kernels, attention])
def test_texts(kernels, golden: Callable[[Path, str], None], monkeypatch):
    monkeypatch.setenv("WEFT_THREADS", "4")
    monkeypatch.setattr(copies, "host", lambda: WIDE)
    chips = (WIDE, TILES) if kernels is attention else (WIDE, OLD, ARM_SERVER)
    lines = []
    for name, kernel in kernels():
        try:
            texts = [emitted_for(kernel, chip).text for chip in chips]
        except Unsupported as error:
            texts = [error.message]
        lines.append(f"{name}: {checksum(*texts)}")
    golden(GOLDEN / f"texts-{kernels.__name__}.txt", "\n".join(lines) + "\n")
