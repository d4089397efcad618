"""Kernels of every kind: chains, products, attention, and what the examples of all ops become."""

from __future__ import annotations

from collections.abc import Iterator

from tests.emit.llvm.product.products import product
from tests.kernels.attention_cases import Sizes, backward, forward
from tests.kernels.chains import CHAINS
from weft.cli.commands.installation.op_examples import example, texts
from weft.emit.llvm.target import LLVM
from weft.ir.module import Node
from weft.ir.types import DTYPES, F32, I32
from weft.kernels.group import AnyKernel
from weft.kernels.stacked_node import StackedNode
from weft.ops.elementwise.pointwise import Add
from weft.tile import group

SIZES = Sizes((2,), (False,), 20, 33, 16, 16)


def corpus() -> Iterator[tuple[str, AnyKernel]]:
    """Kernels, each with a name."""
    yield from _chains()
    yield from _products()
    for name in ("f32", "bf16", "f16"):
        made = forward(SIZES, DTYPES[name], lse=True)
        yield f"attention {name}", made
        yield f"attention backward {name}", backward(made)
    yield from _examples()


def _chains() -> Iterator[tuple[str, AnyKernel]]:
    for name, chain in CHAINS.items():
        for dtype in (F32, DTYPES["bf16"]):
            yield f"{name} {dtype.name}", chain(5, 112, dtype).kernel()
    for name in ("f16", "f64", "f8E4M3FN"):
        yield f"softmax {name}", CHAINS["softmax"](5, 40, DTYPES[name]).kernel()


def _products() -> Iterator[tuple[str, AnyKernel]]:
    for name in ("f32", "bf16", "f16", "f64", "i8"):
        dtype = DTYPES[name]
        held = I32 if dtype.is_integer else F32 if dtype.bits < 64 else dtype
        for dims in (("mk", "kn", "mn"), ("km", "nk", "mn")):
            b, total = product(dims, {"m": 37, "n": 45, "k": 70}, dtype, held, held)
            b.write("mn", b.apply(Add(), total, b.read("n", held)))
            yield f"product {name} {dims}", b.kernel("packed")


def _examples() -> Iterator[tuple[str, AnyKernel]]:
    target = LLVM()
    for name in texts():
        node = example(name)
        if not isinstance(node, Node):
            continue
        placed = StackedNode(node, (0,) * len(node.operands), (0,) * len(node.results))
        for made in group([placed], (), node.results, target):
            if made.kernel is not None:
                yield name, made.kernel
