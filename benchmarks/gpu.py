"""How fast the triton target is on this machine's GPU, beside torch.compile and JAX, in one run.

    python benchmarks/gpu.py [--only rows backward chains products attention gradients llama
                                     training decoding models calls mesh]
                             [--json FILE] [--markdown FILE]

Every side of a row is compiled and loaded first; then all take turns, three rounds, with the GPU
under load throughout: a GPU that has rested for the seconds of a compilation runs products up to a
tenth faster, until its power limit. A figure is the median of the rounds. Results are checked
against PyTorch's first. A ratio is the best peer's time over Weft's: above 1, Weft is faster.
The candidates of chains and products are measured while they compile, as JAX measures algorithms
of its products; elsewhere they are Weft's defaults. See docs/gpu.md.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import jax
import torch
import torch._functorch.config
import triton

import weft
from benchmarks.gpu_first import first_calls
from benchmarks.gpu_models import MODELS
from benchmarks.gpu_programs import (
    CHAINS,
    ROWS,
    DecodeBlock,
    LlamaBlock,
    M,
    N,
    attend,
    block_loss,
    gelu_product,
    leaves,
    random,
    swiglu_pair,
)

SECONDS = 0.1  # of one measurement
ROUNDS = 3


@dataclass
class GpuRow:
    """One row of a table: milliseconds by side, and the work of one call."""

    table: str
    name: str
    ms: dict[str, float]
    work: float = 0.0  # bytes, or flops
    unit: str = ""  # GB/s or TFLOP/s
    error: float = 0.0
    note: str = ""
    ratio: float = field(init=False, default=0.0)

    def __post_init__(self) -> None:
        peers = [ms for side, ms in self.ms.items() if side != "weft"]
        self.ratio = min(peers) / self.ms["weft"] if peers else 0.0

    def line(self) -> str:
        """The row in markdown."""
        scale = 1e6 if self.unit == "GB/s" else 1e9
        rate = f"{self.work / self.ms['weft'] / scale:.0f} {self.unit}" if self.work else ""
        sides = ", ".join(f"{side} {ms:.3f}" for side, ms in self.ms.items())
        ends = f"{self.ratio:.2f} | {self.error:.0e} | {self.note} |"
        return f"| {self.name} | {sides} | {rate} | {ends}"


class Side(NamedTuple):
    """One side of a row: a call, and how its results are waited for."""

    call: Callable[[], Any]
    wait: Callable[[], Any] = torch.cuda.synchronize


def milliseconds(side: Side | Callable[[], Any]) -> float:
    """The mean time of a call, of many back to back."""
    call, wait = side if isinstance(side, Side) else Side(side)
    call()
    wait()
    start = time.perf_counter()
    for _ in range(3):
        call()
    wait()
    count = max(5, min(3000, int(3 * SECONDS / max(1e-5, time.perf_counter() - start))))
    start = time.perf_counter()
    for _ in range(count):
        call()
    wait()
    return (time.perf_counter() - start) / count * 1e3


def relative_error(made: Any, expected: Any) -> float:
    wide, other = made.double().flatten(), expected.double().flatten()
    return float((wide - other).norm() / (other.norm() + 1e-30))


def nbytes(tensors: Any) -> int:
    return sum(t.numel() * t.element_size() for t in tensors)


def compared(
    ours: Callable[[], Any], peers: dict[str, Side | Callable[[], Any]]
) -> dict[str, float]:
    """All sides in turns, after each has run once and the GPU is under load."""
    sides = {"weft": ours, **peers}
    found: dict[str, list[float]] = {name: [] for name in sides}
    for side in sides.values():
        milliseconds(side)
    for _ in range(ROUNDS):
        for name, side in sides.items():
            found[name].append(milliseconds(side))
    return {name: statistics.median(times) for name, times in found.items()}


def jax_side(function: Any, tensors: Any) -> Side:
    """JAX on the same memory."""
    given = [jax.dlpack.from_dlpack(t) for t in tensors]
    jitted = jax.jit(function)
    last: list[Any] = []

    def call() -> None:
        last[:] = jax.tree.leaves(jitted(*given))

    return Side(call, lambda: [x.block_until_ready() for x in last])


def weft_side(function: Any, tensors: Any, tune: str | None = None) -> tuple[Any, list[Any]]:
    given = [weft.put(t, device="cuda") for t in tensors]
    return weft.compile(function, *given, target="triton", tune=tune), given


def rows() -> Iterator[GpuRow]:
    x = random(M, N)
    y = torch.empty_like(x)
    copy = milliseconds(lambda x=x, y=y: y.copy_(x))
    rate = nbytes([x, y]) / copy / 1e6
    yield GpuRow("rows", "copy", {"weft": copy}, nbytes([x, y]), "GB/s", note="torch's copy_")
    del x, y
    for name, (function, torch_function, arguments) in ROWS.items():
        tensors = arguments()
        compiled, given = weft_side(function, tensors)
        made = [x.to_torch() for x in leaves(compiled(*given))]
        other = [t.long() if t.dtype == torch.int32 else t for t in tensors]
        expected = leaves(torch_function(*other))
        error = max(map(relative_error, made, expected))
        work = nbytes([*tensors, *made])
        del made, expected
        peer = torch.compile(torch_function)
        peers = {
            "torch.compile": lambda peer=peer, other=other: peer(*other),
            "jax": jax_side(function, tensors),
        }
        ms = compared(lambda c=compiled, g=given: c(*g), peers)
        note = f"{work / ms['weft'] / 1e6 / rate:.0%} of copy"
        yield GpuRow("rows", name, ms, work, "GB/s", error, note)


def backward() -> Iterator[GpuRow]:
    torch._functorch.config.donated_buffer = False  # the graph is kept from call to call
    for name, (function, torch_function, arguments) in ROWS.items():
        if name in ("adamw", "rotary"):
            continue
        tensors = arguments()
        given = [
            t.long() if t.dtype == torch.int32 else t.clone().requires_grad_() for t in tensors
        ]
        wanted = [t for t in given if t.requires_grad]
        out = torch.compile(torch_function)(*given)
        seed = torch.randn_like(out)
        expected = torch.autograd.grad(out, wanted, seed, retain_graph=True)

        def gradient(*values: Any, function: Any = function) -> Any:
            *primals, tangent = values
            floats = [
                n
                for n, v in enumerate(primals)
                if jax.numpy.issubdtype(v.dtype, jax.numpy.floating)
            ]

            def of_floats(*chosen: Any) -> Any:
                every = [*primals]
                for n, value in zip(floats, chosen, strict=True):
                    every[n] = value
                return function(*every)

            return jax.vjp(of_floats, *[primals[n] for n in floats])[1](tangent)

        every = [*tensors, seed]
        compiled, arrays = weft_side(gradient, every)
        made = [x.to_torch() for x in leaves(compiled(*arrays))]
        error = max(map(relative_error, made, expected))
        work = nbytes([*every, *made])
        del made, expected

        def peer(out: Any = out, wanted: Any = wanted, seed: Any = seed) -> Any:
            return torch.autograd.grad(out, wanted, seed, retain_graph=True)

        peers = {"torch.compile": peer, "jax": jax_side(gradient, every)}
        ms = compared(lambda c=compiled, g=arrays: c(*g), peers)
        note = "torch has saved what weft and jax compute again"
        yield GpuRow("backward", name, ms, work, "GB/s", error, note)


def chains() -> Iterator[GpuRow]:
    for name, (function, torch_function, tensors) in CHAINS().items():
        compiled, given = weft_side(function, tensors, "measure")
        made = [x.to_torch() for x in leaves(compiled(*given))]
        error = max(map(relative_error, made, leaves(torch_function(*tensors))))
        peer = torch.compile(torch_function)
        peers = {"torch.compile": lambda peer=peer, t=tensors: peer(*t)}
        ms = compared(lambda c=compiled, g=given: c(*g), peers)
        yield GpuRow("chains", name, ms, nbytes([*tensors, *made]), "GB/s", error)


def products() -> Iterator[GpuRow]:
    for m, n, k in ((8192, 8192, 8192), (4096, 4096, 4096), (8192, 11008, 4096)):
        x, w = random(m, k), random(k, n)
        compiled, given = weft_side(lambda a, b: a @ b, (x, w), "measure")
        error = relative_error(compiled(*given).to_torch()[:256], x[:256].float() @ w.float())
        peers = {
            "torch": lambda x=x, w=w: x @ w,
            "jax": jax_side(lambda a, b: a @ b, (x, w)),
        }
        ms = compared(lambda c=compiled, g=given: c(*g), peers)
        yield GpuRow("products", f"bf16 {m}x{n}x{k}", ms, 2 * m * n * k, "TFLOP/s", error)
    m, k = 8192, 4096
    x = random(m, k)
    for name, programs, n, others, count in (
        ("product + bias + gelu", gelu_product, 16384, (random(k, 16384), random(16384)), 1),
        ("swiglu pair", swiglu_pair, 11008, (random(k, 11008), random(k, 11008)), 2),
    ):
        function, torch_function = programs
        tensors = (x, *others)
        compiled, given = weft_side(function, tensors, "measure")
        error = relative_error(compiled(*given).to_torch(), torch_function(*tensors))
        peer = torch.compile(torch_function)
        peers = {
            "torch.compile": lambda p=peer, t=tensors: p(*t),
            "jax": jax_side(function, tensors),
        }
        ms = compared(lambda c=compiled, g=given: c(*g), peers)
        yield GpuRow("products", name, ms, 2 * count * m * n * k, "TFLOP/s", error)


def attention() -> Iterator[GpuRow]:
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    for b, h, s, d in ((4, 32, 8192, 128), (4, 32, 2048, 128), (16, 16, 2048, 64)):
        tensors = [random(b, h, s, d) for _ in range(3)]
        compiled, given = weft_side(attend, tensors)
        made = compiled(*given).to_torch()

        def peer(tensors: Any = tensors) -> Any:
            with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
                return scaled_dot_product_attention(*tensors, is_causal=True)

        error = relative_error(made, scaled_dot_product_attention(*tensors, is_causal=True))
        ms = compared(lambda c=compiled, g=given: c(*g), {"torch cuDNN": peer})
        work = 2 * b * h * s * s * d
        yield GpuRow("attention", f"causal B{b} H{h} S{s} D{d}", ms, work, "TFLOP/s", error)


def gradients() -> Iterator[GpuRow]:
    """Forward and backward of attention; of PyTorch's both calls."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    for b, h, s, d in ((4, 32, 8192, 128), (16, 16, 2048, 64)):
        tensors = [random(b, h, s, d) for _ in range(4)]

        def both(q: Any, k: Any, v: Any, g: Any) -> Any:
            out, pull = jax.vjp(attend, q, k, v)
            return out, *pull(g)

        compiled, given = weft_side(both, tensors)
        made = [x.to_torch() for x in leaves(compiled(*given))]
        wanted = [t.clone().requires_grad_() for t in tensors[:3]]

        def peer(wanted: Any = wanted, seed: Any = tensors[3]) -> Any:
            with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
                out = scaled_dot_product_attention(*wanted, is_causal=True)
            return [out, *torch.autograd.grad(out, wanted, seed)]

        error = max(map(relative_error, made, peer()))
        ms = compared(
            lambda c=compiled, g=given: c(*g),
            {"torch cuDNN": peer},
        )
        work = 7 * b * h * s * s * d
        name = f"causal B{b} H{h} S{s} D{d}, forward and backward"
        yield GpuRow("gradients", name, ms, work, "TFLOP/s", error)


def training() -> Iterator[GpuRow]:
    """A step of AdamW on one block of Llama-7B."""
    tensors = (random(4, 2048, 4096), random(2048, 64), random(2048, 64), random(4, 2048, 4096))
    ours = LlamaBlock().cuda().bfloat16()
    theirs = copy.deepcopy(ours)
    step = weft.train_step(ours, block_loss, torch.optim.AdamW(ours.parameters(), lr=1e-3))
    optimizer = torch.optim.AdamW(theirs.parameters(), lr=1e-3, fused=True)
    forward = torch.compile(lambda *batch: block_loss(theirs, *batch))

    def peer() -> Any:
        optimizer.zero_grad()
        loss = forward(*tensors)
        loss.backward()
        optimizer.step()
        return loss.detach()

    error = 0.0
    for _ in range(3):
        made, expected = step(*tensors), peer()
        error = max(error, relative_error(made, expected))
    ms = compared(lambda: step(*tensors), {"torch.compile": peer})
    yield GpuRow("training", "block, 8192 tokens, AdamW", ms, error=error)


def decoding() -> Iterator[GpuRow]:
    """One token, with a cache of keys and values."""
    model = DecodeBlock().cuda().bfloat16()
    peers_model = copy.deepcopy(model)
    at = torch.tensor([2040], device="cuda")
    tensors = (random(1, 1, 4096), random(1, 64), random(1, 64), at)
    with torch.no_grad():
        compiled = weft.compile(model, *tensors)
        peer = torch.compile(peers_model, mode="reduce-overhead")
        error = relative_error(compiled(*tensors), peers_model(*tensors))
        peers = {"torch.compile, graph": lambda: peer(*tensors)}
        ms = compared(lambda: compiled(*tensors), peers)
        work = nbytes([*model.parameters(), *model.buffers()])
        yield GpuRow("decoding", "block, one token, cache of 2048", ms, work, "GB/s", error)


def llama() -> Iterator[GpuRow]:
    model = LlamaBlock().cuda().bfloat16()
    x, cos, sin = random(4, 2048, 4096), random(2048, 64), random(2048, 64)
    with torch.no_grad():
        compiled = weft.compile(model, x, cos, sin)
        peer = torch.compile(model)
        error = relative_error(compiled(x, cos, sin), peer(x, cos, sin))
        peers = {
            "torch.compile": lambda: peer(x, cos, sin),
            "torch": lambda: model(x, cos, sin),
        }
        ms = compared(lambda: compiled(x, cos, sin), peers)
        (ours, first), (theirs, other) = first_calls("weft"), first_calls("torch")
        note = (
            f"compiled and called in {ours:.1f} s, torch.compile {theirs:.1f} s; by a process that "
            f"has compiled nothing yet in {first:.1f} s, torch.compile {other:.1f} s"
        )
        yield GpuRow("llama", "block, 8192 tokens, forward", ms, error=error, note=note)


def models() -> Iterator[GpuRow]:
    """Whole models, forward, in bf16; in torch.compile's graphs, too."""
    for name, (kind, shape) in MODELS.items():
        model = kind().cuda().bfloat16().eval()
        x = random(*shape)
        with torch.no_grad():
            compiled = weft.compile(model, x)
            error = relative_error(compiled(x), model(x))
            peer = torch.compile(model)
            graphs = torch.compile(model, mode="reduce-overhead")
            peers = {
                "torch.compile": lambda p=peer, x=x: p(x),
                "torch.compile, graph": lambda p=graphs, x=x: p(x),
            }
            note = ""
            try:
                peer(x)
            except torch._inductor.exc.InductorError as failed:
                peers = {"torch": lambda m=model, x=x: m(x)}
                note = f"torch.compile fails: {str(failed).splitlines()[0]}"
            ms = compared(lambda c=compiled, x=x: c(x), peers)
        yield GpuRow("models", name, ms, error=error, note=note)
        torch._dynamo.reset()


def calls() -> Iterator[GpuRow]:
    """Host time of a call: a small program, which the device finishes long before."""
    compiled, given = weft_side(lambda a: jax.numpy.tanh(a) * 2 + 1, (random(64, 64),))
    found: list[float] = []
    for _ in range(30):  # bursts: a queue that is full waits for the device
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(100):
            compiled(*given)
        found.append((time.perf_counter() - start) / 100 * 1e3)
    host = statistics.median(found)
    note = f"{host * 1e3:.1f} us a call from Python"
    yield GpuRow("calls", "a small program", {"weft": host}, note=note)


def mesh() -> Iterator[GpuRow]:
    from weft import P

    x, w = random(4096, 2048), random(2048, 4096)
    function = lambda a, b: jax.nn.softmax(jax.nn.gelu(a @ b))  # noqa: E731
    alone, given = weft_side(function, (x, w))
    expected = alone(*given).to_torch()
    one = milliseconds(lambda: alone(*given))
    for data, model in ((2, 4), (16, 16)):
        devices = weft.Mesh(data=data, model=model)
        splits = (P("data"), P(None, "model"))
        arrays = [
            weft.put(t, split, devices, device="cuda")
            for t, split in zip((x, w), splits, strict=True)
        ]
        options = {"mesh": devices, "in_shardings": splits, "target": "triton"}
        compiled = weft.compile(function, *arrays, **options)
        made = torch.from_numpy(compiled(*arrays).numpy().astype("f")).cuda()
        ms = milliseconds(lambda c=compiled, a=arrays: c(*a))
        name = f"{data * model} devices in lockstep, softmax(gelu(x @ w))"
        yield GpuRow("mesh", name, {"weft": ms, "one device": one},
                     error=relative_error(made, expected))  # fmt: skip


TABLES = (
    rows, backward, chains, products, attention, gradients, llama, training, decoding, models,
    calls, mesh,
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=[t.__name__ for t in TABLES])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", type=Path)
    given = parser.parse_args()
    torch.manual_seed(0)
    packages = f"torch {torch.__version__}, Triton {triton.__version__}, JAX {jax.__version__}"
    lines = [f"{torch.cuda.get_device_name()}, {packages}, {time.strftime('%Y-%m-%d')}", ""]
    print(lines[0], flush=True)
    found: list[GpuRow] = []
    for table in TABLES:
        if given.only and table.__name__ not in given.only:
            continue
        head = f"| {table.__name__} | ms | rate | ratio | error | |"
        lines += [head, "|---|---|---|---|---|---|"]
        print(head, flush=True)
        try:
            for row in table():
                found.append(row)
                lines.append(row.line())
                print(row.line(), flush=True)
        except Exception as error:  # noqa: BLE001  # the other tables are worth having
            lines.append(f"| failed: {type(error).__name__}: {str(error)[:300]} | | | | | |")
            print(lines[-1], flush=True)
        lines.append("")
    if given.json:
        given.json.write_text(json.dumps([asdict(row) for row in found], indent=1))
    if given.markdown:
        given.markdown.write_text("\n".join(lines))


if __name__ == "__main__":
    main()
