"""Mixtures of experts on this machine's GPU: their grouped products, a layer, and its training.

    python benchmarks/gpu_experts.py [--markdown FILE]

A layer of 64 experts, 6 of them for each of 8192 tokens, 2048 wide, with 1408 hidden features; the
peers call `torch._grouped_mm`. Sides take turns as in gpu.py. See docs/gpu.md.
"""

from __future__ import annotations

import argparse
import copy
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import jax
import torch
import torch.nn.functional as F

import weft
from benchmarks.gpu import GpuRow, compared, relative_error, weft_side
from benchmarks.gpu_programs import random

EXPERTS, CHOSEN, WIDTH, HIDDEN, TOKENS = 64, 6, 2048, 1408, 8192


class Mixture(torch.nn.Module):
    """A router, and experts on the tokens that chose them; nothing waits for the device."""

    def __init__(self) -> None:
        super().__init__()
        self.router = torch.nn.Parameter(0.05 * torch.randn(WIDTH, EXPERTS))
        self.up = torch.nn.Parameter(0.02 * torch.randn(EXPERTS, WIDTH, 2 * HIDDEN))
        self.down = torch.nn.Parameter(0.02 * torch.randn(EXPERTS, HIDDEN, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shares, chosen = torch.softmax((x @ self.router).float(), -1).topk(CHOSEN, -1)
        flat = chosen.flatten()
        order = flat.argsort()
        ends = torch.searchsorted(flat[order], torch.arange(EXPERTS, device=x.device), right=True)
        tokens, ends = order // CHOSEN, ends.to(torch.int32)
        gate, up = torch._grouped_mm(x[tokens], self.up, offs=ends).chunk(2, -1)
        made = torch._grouped_mm(F.silu(gate) * up, self.down, offs=ends)
        made = made * shares.to(x.dtype).flatten()[order, None]
        return torch.zeros_like(x).index_add(0, tokens, made)


def loss(model: torch.nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return ((model(x) - y).float() ** 2).mean()


def sizes_of_groups() -> torch.Tensor:
    """Uneven groups, one of them empty; some rows are in none."""
    shares = torch.rand(EXPERTS, generator=torch.Generator().manual_seed(0)) + 0.2
    shares[7] = 0
    counts = (shares / shares.sum() * (TOKENS * CHOSEN - 100)).int()
    return counts.cuda()


def products() -> Iterator[GpuRow]:
    """The grouped products of a layer, forward and backward."""
    rows, sizes = TOKENS * CHOSEN, sizes_of_groups()
    ends = sizes.cumsum(0).to(torch.int32)
    inside = int(ends[-1])
    x, w, g = random(rows, WIDTH), random(EXPERTS, WIDTH, 2 * HIDDEN), random(rows, 2 * HIDDEN)
    sums = jax.lax.RaggedDotDimensionNumbers((((0,), (0,)), ((), ())), (0,), ())
    turned = jax.lax.RaggedDotDimensionNumbers((((1,), (2,)), ((), ())), (0,), (0,))
    cases: dict[str, tuple[Any, Any, Any]] = {
        "rows @ weights": (jax.lax.ragged_dot, torch._grouped_mm, (x, w)),
        "its gradient by rows": (
            lambda g, w, s: jax.lax.ragged_dot_general(g, w, s, turned),
            lambda g, w, offs: torch._grouped_mm(g, w.mT, offs=offs),
            (g, w),
        ),
        "its gradient by weights": (
            lambda x, g, s: jax.lax.ragged_dot_general(x, g, s, sums),
            lambda x, g, offs: torch._grouped_mm(x.mT, g, offs=offs),
            (x, g),
        ),
    }
    for name, (function, peer, tensors) in cases.items():
        compiled, given = weft_side(function, (*tensors, sizes))
        made, expected = compiled(*given).to_torch(), peer(*tensors, offs=ends)
        if len(made) == rows:
            assert not made[inside:].any(), "rows in no group are 0"
            made, expected = made[:inside], expected[:inside]
        error = relative_error(made, expected)
        peers = {"torch._grouped_mm": lambda p=peer, t=tensors: p(*t, offs=ends)}
        ms = compared(lambda c=compiled, a=given: c(*a), peers)
        work = 2 * inside * WIDTH * 2 * HIDDEN
        yield GpuRow("experts", name, ms, work, "TFLOP/s", error)


def layer() -> Iterator[GpuRow]:
    """A whole layer, forward, and a step of SGD."""
    model, x, y = Mixture().cuda().bfloat16(), random(TOKENS, WIDTH), random(TOKENS, WIDTH)
    other = copy.deepcopy(model)
    with torch.no_grad():
        compiled, peer = weft.compile(model, x), torch.compile(other)
        error = relative_error(compiled(x), other(x))
        peers = {"torch.compile": lambda: peer(x), "torch": lambda: other(x)}
        ms = compared(lambda: compiled(x), peers)
    work = 6 * TOKENS * CHOSEN * WIDTH * HIDDEN
    yield GpuRow("experts", "layer, forward", ms, work, "TFLOP/s", error)
    optimizer = torch.optim.SGD(other.parameters(), lr=1e-3, fused=True)

    def step_of_peer() -> torch.Tensor:
        optimizer.zero_grad()
        made = loss(other, x, y)
        made.backward()
        optimizer.step()
        return made.detach()

    step = weft.train_step(model, loss, torch.optim.SGD(model.parameters(), lr=1e-3))
    error = max(relative_error(step(x, y), step_of_peer()) for _ in range(3))
    ms = compared(lambda: step(x, y), {"torch": step_of_peer})
    yield GpuRow("experts", "layer, a step of SGD", ms, 3 * work, "TFLOP/s", error)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--markdown", type=Path)
    given = parser.parse_args()
    torch.manual_seed(0)
    lines = ["| experts | ms | rate | ratio | error | |", "|---|---|---|---|---|---|"]
    for table in (products, layer):
        for row in table():
            lines.append(row.line())
            print(row.line(), flush=True)
            if given.markdown:
                given.markdown.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
