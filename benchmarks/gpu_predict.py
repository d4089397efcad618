"""Predicted against measured times of every launch of programs on this machine's GPU.

    python benchmarks/gpu_predict.py [--machine h200] [--json FILE]

Each launch of a compiled program is timed alone, in a CUDA graph of its own with cold caches, less
what a graph of one small kernel takes beyond the machine's launch, and compared with the cost
model's time on the machine (run `weft calibrate --gpu` first for the numbers of this one). See
docs/gpu.md.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from torch.nn import functional as F
from triton.testing import do_bench

import weft
from benchmarks.gpu import milliseconds
from benchmarks.gpu_programs import DecodeBlock, LlamaBlock, block_loss, random
from weft.cost.kernels import kernel_seconds
from weft.emit.triton.runtime.commands import GraphCommands
from weft.machine import machine
from weft.run.bind import loaded_kernels

INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by bytes
# Columns and rows of matrices that are multiplied by one vector.
VECTORS = (
    (1024, 1024), (2048, 8192), (4096, 4096), (4096, 11008), (11008, 4096), (4096, 32000),
    (8192, 8192), (8192, 28672), (1000, 3000),
)  # fmt: skip


class Experts(torch.nn.Module):
    """A layer of experts with a capacity: each takes so many of the tokens that chose it."""

    def __init__(self, width=2048, hidden=1408, experts=64, chosen=6, capacity=960):
        super().__init__()
        self.chosen, self.capacity = chosen, capacity
        self.router = torch.nn.Linear(width, experts, bias=False)
        sizes = (width, hidden), (width, hidden), (hidden, width)
        self.gate, self.up, self.down = (
            torch.nn.Parameter(0.02 * torch.randn(experts, *pair)) for pair in sizes
        )

    def forward(self, x):
        weights, experts = self.router(x).float().softmax(-1).topk(self.chosen)
        share = torch.zeros(x.shape[0], self.gate.shape[0], device=x.device)
        share = share.scatter(1, experts, weights)
        weights, tokens = share.T.topk(self.capacity)  # of each expert
        rows = x[tokens.flatten()].view(*tokens.shape, -1)
        hidden = F.silu(torch.bmm(rows, self.gate)) * torch.bmm(rows, self.up)
        out = torch.bmm(hidden, self.down) * weights.unsqueeze(-1).to(x.dtype)
        return torch.zeros_like(x).index_add(0, tokens.flatten(), out.flatten(0, 1))


class Vectors(torch.nn.Module):
    """Products of one row, as a token needs them."""

    def __init__(self, sizes=VECTORS):
        super().__init__()
        self.matrices = torch.nn.ModuleList(torch.nn.Linear(*pair, bias=False) for pair in sizes)

    def forward(self, *rows):
        return [matrix(row) for matrix, row in zip(self.matrices, rows, strict=True)]


def programs() -> dict[str, tuple[Any, Any]]:
    """Name: the compiled program, and a call of it."""
    x, cos, sin = random(4, 2048, 4096), random(2048, 64), random(2048, 64)
    block, decoding, trained, experts, vectors = (
        cls().cuda().bfloat16() for cls in (LlamaBlock, DecodeBlock, LlamaBlock, Experts, Vectors)
    )
    token = (random(1, 1, 4096), random(1, 64), random(1, 64), torch.tensor([2040], device="cuda"))
    with torch.no_grad():
        forward, one = weft.compile(block, x, cos, sin), weft.compile(decoding, *token)
        tokens, rows = random(8192, 2048), [random(1, pair[0]) for pair in VECTORS]
        mixed, products = weft.compile(experts, tokens), weft.compile(vectors, *rows)
    step = weft.train_step(trained, block_loss, torch.optim.AdamW(trained.parameters(), lr=1e-3))
    batch = (x, cos, sin, random(4, 2048, 4096))
    return {
        "Llama block, forward": (forward, lambda: forward(x, cos, sin)),
        "training step": (step, lambda: step(*batch)),
        "one token": (one, lambda: one(*token)),
        "mixture of 64 experts": (mixed, lambda: mixed(tokens)),
        "products of one row": (products, lambda: products(*rows)),
    }


def graph_overhead() -> float:
    """Seconds that timing a graph of one small kernel reads."""
    number = torch.zeros(1, device="cuda")
    number.add_(1)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        number.add_(1)
    return float(do_bench(graph.replay, warmup=5, rep=20)) / 1e3


def measured(loaded: Any, launch: Any) -> float:
    """Seconds of one launch, on random operands."""
    memory = launch[0].target.memory
    # Bytes of ordinary floats; integers are small, as they may be indices.
    buffers = [
        torch.randint(60, 64, (max(16, o.nbytes),), dtype=torch.uint8, device="cuda")
        if o.dtype.is_float
        else torch.randint(0, 64, (max(16, o.size),), device="cuda").to(
            INTEGERS[o.nbytes // o.size]
        )
        for o in launch[1].kernel.operands
    ]
    queue = GraphCommands(memory)
    queue.kernel(loaded, [b.data_ptr() for b in buffers])
    queue.launch()
    graph = queue.captured()
    stream = torch.cuda.current_stream().cuda_stream
    return float(do_bench(lambda: graph.launch(stream), warmup=5, rep=20)) / 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--machine", default="h200")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    on, rows = machine(given.machine), []
    beyond = max(0.0, graph_overhead() - on.launch)
    print(f"{torch.cuda.get_device_name()}, {on.name}: {on.about}")
    print("| program | launches | median error | mean | within 15% | sum | whole |")
    print("|---|---|---|---|---|---|---|")
    for name, (compiled, call) in programs().items():
        call()
        whole = milliseconds(call) / 1e3
        local, pairs, known = compiled.program.local, [], {}
        for launch, loaded in loaded_kernels(local.calls):
            kernel = launch.kernel
            if kernel not in known:
                known[kernel] = max(on.launch, measured(loaded, (local, launch)) - beyond)
            pairs.append((kernel.name, kernel_seconds(kernel, on), known[kernel]))
        errors = [abs(p / m - 1) for _, p, m in pairs]
        ratio = math.exp(statistics.mean([math.log(p / m) for _, p, m in pairs]))
        total, each = sum(p for _, p, _ in pairs), sum(m for *_, m in pairs)
        inside = sum(e <= 0.15 for e in errors) / len(errors)
        print(
            f"| {name} | {len(pairs)} | {statistics.median(errors):.0%} | {ratio:.2f} | "
            f"{inside:.0%} | {total * 1e3:.3f} of {each * 1e3:.3f} ms | {whole * 1e3:.3f} ms |",
            flush=True,
        )
        worst = sorted(pairs, key=lambda r: -abs(r[1] - r[2]))[:6]
        for kernel, p, m in worst:
            print(f"  {kernel}: {p * 1e6:.1f} us predicted, {m * 1e6:.1f} measured")
        rows += [
            {"program": name, "kernel": kernel, "predicted": p, "measured": m}
            for kernel, p, m in pairs
        ]
    if given.json:
        given.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
