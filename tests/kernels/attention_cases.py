"""Attention kernels of any shape and layout, and arrays for them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, composite

from weft.ir.types import BOOL, DTYPES, F32, F64, Array, DType
from weft.kernels.attention import (
    Access,
    Attention,
    AttentionMask,
    Gradients,
    Window,
)
from weft.kernels.kernel import Operand

# Orders of the dims of an operand in memory, major first: o(uter), r(ow), c(olumn).
LAYOUTS = ("orc", "roc", "ocr")


@dataclass(frozen=True)
class Sizes:
    """What an attention is about."""

    outer: tuple[int, ...]
    shared: tuple[bool, ...]  # for each outer dim, whether keys and values are shared along it
    queries: int
    keys: int
    depth: int
    value_depth: int


class Building:
    """Collects the operands of a kernel."""

    def __init__(self, sizes: Sizes) -> None:
        self.sizes = sizes
        self.operands: list[Operand] = []

    def add(
        self,
        dtype: DType,
        rows: int,
        columns: int,
        layout: str = "orc",
        *,
        shared: Sequence[bool] = (),
        output: bool = False,
        offset: int = 0,
    ) -> Access:
        """An operand, and where its elements lie; a size of 1 has stride 0 where rows are pairs."""
        outer = self.sizes.outer
        held = [1 if n < len(shared) and shared[n] else size for n, size in enumerate(outer)]
        dims: list[tuple[str | int, int]] = []
        for letter in layout:
            if letter == "o":
                dims += list(enumerate(held))
            else:
                dims.append((letter, rows if letter == "r" else columns))
        strides: dict[str | int, int] = {}
        step = 1
        for name, size in reversed(dims):
            strides[name] = step if size > 1 else 0
            step *= size
        shape = (step + offset,)
        self.operands.append(Operand(dtype, shape, output))
        places = tuple([strides[n] for n in range(len(outer))])
        number = len(self.operands) - 1
        return Access(number, places, strides["r"], strides["c"], offset)


def forward(
    sizes: Sizes,
    dtype: DType = F32,
    layouts: Sequence[str] = ("orc",) * 4,
    *,
    mask: Sequence[bool] | None = None,
    bias: Sequence[bool] | None = None,
    fill: float = -math.inf,
    lse: bool = False,
    **fields: object,
) -> Attention:
    """A forward kernel; `mask` and `bias` say along which outer dims and queries they are alike."""
    b, s = Building(sizes), sizes
    q = b.add(dtype, s.queries, s.depth, layouts[0], offset=3)
    k = b.add(dtype, s.keys, s.depth, layouts[1], shared=s.shared)
    v = b.add(dtype, s.keys, s.value_depth, layouts[2], shared=s.shared)
    pairs: dict[str, object] = {}
    if mask is not None:
        at = _pairs(b, BOOL, mask)
        pairs["mask"] = AttentionMask(at, fill, hides=bool(len(mask) % 2))
    if bias is not None:
        pairs["bias"] = _pairs(b, dtype, bias)
    out = b.add(dtype, s.queries, s.value_depth, layouts[3], output=True)
    if lse:
        pairs["lse"] = b.add(F64 if dtype is F64 else F32, s.queries, 1, output=True)
    return Attention(
        "attention",
        s.outer,
        s.queries,
        s.keys,
        s.depth,
        s.value_depth,
        tuple(b.operands),
        q,
        k,
        v,
        out,
        scale=1 / math.sqrt(s.depth),
        **(pairs | fields),  # type: ignore[arg-type]
    )


def _pairs(b: Building, dtype: DType, alike: Sequence[bool]) -> Access:
    *outer, over_queries = alike
    rows = 1 if over_queries else b.sizes.queries
    return b.add(dtype, rows, b.sizes.keys, shared=outer)


def backward(kernel: Attention, *, bias: bool = False) -> Attention:
    """The backward kernel of a forward one with logsumexp: its outputs become inputs."""
    assert kernel.lse is not None
    operands = [replace(o, output=False) for o in kernel.operands]
    dtype = kernel.dtype(kernel.out)

    def like(access: Access, *, output: bool) -> Access:
        operands.append(replace(operands[access.operand], output=output))
        return replace(access, operand=len(operands) - 1)

    out = like(kernel.out, output=False)
    q, k, v = (like(a, output=True) for a in (kernel.q, kernel.k, kernel.v))
    slopes = None
    if bias:
        sizes = Sizes(kernel.outer, (), kernel.queries, kernel.keys, 1, 1)
        slopes = Building(sizes).add(dtype, kernel.queries, kernel.keys, output=True)
        size = math.prod((*kernel.outer, kernel.queries, kernel.keys))
        operands.append(Operand(dtype, (size,), output=True))
        slopes = replace(slopes, operand=len(operands) - 1)
    gradients = Gradients(out, q, k, v, slopes)
    return replace(kernel, operands=tuple(operands), gradients=gradients)


def inputs(kernel: Attention, seed: int = 0, spread: float = 1.0) -> list[Array]:
    """Made-up inputs of a kernel."""
    rng = np.random.default_rng(seed)
    made: list[Array] = []
    for operand in kernel.operands:
        if operand.output:
            continue
        if operand.dtype is BOOL:
            made.append(rng.random(operand.shape) < 0.7)
        else:
            made.append((rng.standard_normal(operand.shape) * spread).astype(operand.dtype.numpy))
    return made


@composite
def windows(draw: DrawFn, queries: int, keys: int) -> Window:
    """None, causal, or a band, aligned at either end."""
    side = st.none() | st.integers(-2, max(queries, keys) + 2)
    return Window(draw(side), draw(side), draw(st.sampled_from((0, keys - queries))))


@composite
def kernels(draw: DrawFn, most: int = 70, lse: bool = False) -> Attention:
    """Forward kernels of every kind."""
    outer = tuple(draw(st.lists(st.integers(1, 3), max_size=2)))
    shared = tuple(draw(st.booleans()) for _ in outer)
    length = st.integers(1, most) | st.sampled_from((16, 32, 64))
    depth = st.integers(1, 40) | st.sampled_from((16, 32, 64, 80, 128))
    sizes = Sizes(outer, shared, draw(length), draw(length), draw(depth), draw(depth))
    alike = st.none() | st.tuples(*[st.booleans() for _ in range(len(outer) + 1)])
    names = ("f32", "f64", "bf16", "f16")
    return forward(
        sizes,
        DTYPES[draw(st.sampled_from(names))],
        tuple(draw(st.sampled_from(LAYOUTS)) for _ in range(4)),
        mask=draw(alike),
        bias=draw(alike),
        fill=draw(st.sampled_from((-math.inf, -1e30))),
        lse=lse or draw(st.booleans()),
        window=draw(windows(sizes.queries, sizes.keys)),
        empty=draw(st.sampled_from(("zero", "nan"))),
        bias_scale=draw(st.sampled_from((1.0, -1.0, 0.5))),
        softcap=0.0 if lse else draw(st.sampled_from((0.0, 2.0))),  # which have no gradients
    )
