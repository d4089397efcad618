"""The JAX plugin on a GPU: arrays in its memory, what is copied, and times beside two peers.

    python benchmarks/gpu_plugin.py [--only check time] [--markdown FILE]

`check` runs small programs (benchmarks/gpu_plugin_cases.py) on the plugin with the triton target,
on eight virtual devices, and compares them with JAX's CPU in the same process. `time` measures a
call and a training step of a Llama layer of width 4096 through the plugin, `weft.compile` and
JAX's own CUDA devices, each in a process of its own, one after the other, three rounds. Bytes are
those that PyTorch copies between the GPU and the host. See docs/gpu.md.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

SIDES = {
    "plugin": {"JAX_PLATFORMS": "weft", "WEFT_TARGET": "triton", "WEFT_DEVICES": "1"},
    "weft.compile": {"JAX_PLATFORMS": "cpu"},
    "jax cuda": {"JAX_PLATFORMS": "cuda", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"},
}
CHECK = {"JAX_PLATFORMS": "weft", "WEFT_TARGET": "triton", "WEFT_DEVICES": "8"}
WIDTH, HIDDEN, HEADS, TOKENS, ROUNDS = 4096, 11008, 32, 8192, 3


# Counting


class Copied:
    """The bytes that are copied between the device and the host."""

    def __init__(self) -> None:
        from weft.array.memory import DeviceBuffer
        from weft.array.torch_memory import TorchMemory

        self.to_device = self.to_host = 0
        copy = TorchMemory.copy

        def counting(memory: Any, source: Any, into: Any) -> None:
            if not isinstance(source, DeviceBuffer):
                self.to_device += source.nbytes
            if not isinstance(into, DeviceBuffer):
                self.to_host += into.nbytes
            copy(memory, source, into)

        TorchMemory.copy = counting  # type: ignore[method-assign]

    def during(self, call: Callable[[], Any]) -> tuple[int, int]:
        """Bytes to the device, and to the host."""
        before = self.to_device, self.to_host
        call()
        return self.to_device - before[0], self.to_host - before[1]


# Correctness


def compare(made: Any, wanted: Any) -> float:
    """The largest difference, relative to the largest element; raises if it is too large."""
    import jax
    import numpy as np

    worst = 0.0
    for one, other in zip(jax.tree.leaves(made), jax.tree.leaves(wanted), strict=True):
        mine, theirs = np.asarray(one), np.asarray(other)
        assert mine.shape == theirs.shape and mine.dtype == theirs.dtype, (mine, theirs)
        if mine.dtype.kind in "biu":
            np.testing.assert_array_equal(mine, theirs)
            continue
        kind = np.complex128 if mine.dtype.kind == "c" else np.float64
        mine, theirs = mine.astype(kind), theirs.astype(kind)
        scale = max(1e-6, float(np.abs(theirs).max(initial=0)))
        error = float(np.abs(mine - theirs).max(initial=0)) / scale
        narrow = one.dtype.itemsize < 4
        assert error < (2**-7 if narrow else 2e-4), f"differs by {error:.1e}"
        worst = max(worst, error)
    return worst


def check() -> None:
    """Run all cases, and print a line for each that differs."""
    import jax

    from benchmarks.gpu_plugin_cases import CASES, sharded

    cpu, start = jax.devices("cpu"), time.perf_counter()
    ours, theirs = sharded(jax.devices()), sharded(cpu)
    rows = {name: (case, case, cpu[0]) for name, case in CASES.items()}
    rows |= {name: (case, theirs[name], cpu[0]) for name, case in ours.items()}
    failed, worst = [], 0.0
    for name, (case, reference, device) in rows.items():
        try:
            with jax.default_device(jax.devices()[0]):
                made = jax.block_until_ready(case())
            with jax.default_device(device):
                wanted = reference()
            worst = max(worst, compare(made, wanted))
        except Exception as error:  # noqa: BLE001  # each case by itself
            failed.append(name)
            text = "".join(traceback.format_exception(error)[-4:])
            print(f"FAILED {name}: {text}", flush=True)
    exchange()
    print(json.dumps({"cases": len(rows), "failed": failed, "worst": worst,
                      "seconds": time.perf_counter() - start}))  # fmt: skip


def exchange() -> None:
    """Exchange memory with PyTorch, without a copy."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    import torch

    jax.devices()  # JAX resolves where a tensor is before it makes its backends
    copied, double, plus = Copied(), jax.jit(lambda a: a * 2), jax.jit(lambda a: a + 1)
    tensor = torch.arange(1 << 20, device="cuda", dtype=torch.float32)

    def both() -> None:
        array = jax.dlpack.from_dlpack(tensor)
        assert array.unsafe_buffer_pointer() == tensor.data_ptr()
        made = double(array)
        back = torch.from_dlpack(made)
        assert back.is_cuda and back.data_ptr() == made.unsafe_buffer_pointer()
        assert tuple(map(int, made.__dlpack_device__())) == (2, 0)
        assert torch.equal(back, tensor * 2)
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            assert torch.equal(torch.from_dlpack(plus(made)), tensor * 2 + 1)

    both()
    assert copied.during(both) == (0, 0), "no byte goes by way of the host"
    before = torch.cuda.memory_allocated()
    big = jnp.zeros((1 << 26,), np.float32) + 1
    add = jax.jit(lambda a: a + 1, donate_argnums=0)
    for _ in range(4):
        big = add(big)
    assert float(big[3]) == 5
    grown = torch.cuda.memory_allocated() - before
    assert grown < 1.6 * big.nbytes, f"donated in place: {grown}"
    assert not big.is_deleted() and big.block_until_ready().is_ready()
    big.delete()
    stats = jax.devices()[0].memory_stats()
    assert stats["bytes_limit"] > 1 << 30, stats
    try:
        jnp.zeros((1 << 40,), np.float32).block_until_ready()
    except jax.errors.JaxRuntimeError as error:
        assert "RESOURCE_EXHAUSTED" in str(error), error
    else:
        raise AssertionError("4 TiB on a GPU")


# Times


def layer_step(side: str) -> tuple[Callable[..., Any], Callable[[], Any]]:
    """A training step of a Llama layer with AdamW, and its arguments on the host."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    from examples.llama import rms_norm

    size = WIDTH // HEADS
    library = "cudnn" if side == "jax cuda" else None  # Weft chooses it by itself

    def rotated(x: Any) -> Any:
        half = size // 2
        angles = jnp.arange(x.shape[1])[:, None] / 10_000 ** (jnp.arange(half) / half)
        cos, sin = (f(angles)[:, None].astype(x.dtype) for f in (jnp.cos, jnp.sin))
        a, b = x[..., :half], x[..., half:]
        return jnp.concatenate([a * cos - b * sin, a * sin + b * cos], -1)

    def layer(w: Any, x: Any) -> Any:
        h = rms_norm(x, w["norm1"])
        q, k, v = ((h @ w[n]).reshape(*x.shape[:2], HEADS, size) for n in "qkv")
        q, k = rotated(q), rotated(k)
        held = jax.nn.dot_product_attention(q, k, v, is_causal=True, implementation=library)
        x = x + held.reshape(x.shape) @ w["o"]
        h = rms_norm(x, w["norm2"])
        return x + (jax.nn.silu(h @ w["gate"]) * (h @ w["up"])) @ w["down"]

    def step(w: Any, m: Any, v: Any, x: Any) -> Any:
        def loss(w: Any) -> Any:
            held = jax.tree.map(lambda a: a.astype(jnp.bfloat16), w)
            return jnp.mean(layer(held, x).astype(jnp.float32) ** 2)

        value, grads = jax.value_and_grad(loss)(w)
        m = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, m, grads)
        v = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, v, grads)
        w = jax.tree.map(lambda w, m, v: w - 1e-4 * (m / (jnp.sqrt(v) + 1e-8) + 0.01 * w), w, m, v)
        return w, m, v, value

    def arguments() -> Any:
        random = np.random.default_rng(0)
        square, wide = (WIDTH, WIDTH), (WIDTH, HIDDEN)
        shapes = dict.fromkeys("qkvo", square) | {"gate": wide, "up": wide, "down": wide[::-1]}
        w = {
            name: random.standard_normal(shape, np.float32) / shape[0] ** 0.5
            for name, shape in shapes.items()
        }
        w |= {"norm1": np.ones(WIDTH, np.float32), "norm2": np.ones(WIDTH, np.float32)}
        zeros = jax.tree.map(np.zeros_like, w)
        x = random.standard_normal((4, TOKENS // 4, WIDTH), np.float32).astype(jnp.bfloat16)
        return w, zeros, jax.tree.map(np.copy, zeros), x

    return step, arguments


def timed(call: Callable[[], Any], wait: Callable[[Any], Any], seconds: float = 0.7) -> float:
    """Milliseconds of a call, of many back to back."""
    wait(call())
    count, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds / 4:
        made, count = call(), count + 1
    wait(made)
    count = max(3, int(count * seconds / (time.perf_counter() - start)))
    start = time.perf_counter()
    for _ in range(count):
        made = call()
    wait(made)
    return (time.perf_counter() - start) / count * 1e3


def serve(side: str) -> None:
    """Prepare both programs, and measure a round for every line that comes."""
    import jax
    import numpy as np

    step, arguments = layer_step(side)
    x = np.ones((1024,), np.float32)
    wait, found = jax.block_until_ready, dict[str, Any]()
    copied = None if side == "jax cuda" else Copied()
    state, small = [*arguments()], jax.numpy.asarray(x)
    if side == "weft.compile":
        import torch

        import weft

        plus = weft.compile(lambda a: a * 2 + 1, x, target="triton")
        begin = time.perf_counter()
        train = weft.compile(step, *state, target="triton", donate_argnums=(0, 1, 2))
        small = weft.put(x, device="cuda")
        state = jax.tree.map(lambda a: weft.put(a, device="cuda"), state)
        wait = lambda made: torch.cuda.synchronize()  # noqa: E731
    else:
        plus = jax.jit(lambda a: a * 2 + 1)
        train = jax.jit(step, donate_argnums=(0, 1, 2))
        state = jax.block_until_ready(jax.device_put(state))
        begin = time.perf_counter()

    def one() -> Any:
        *state[:3], value = train(*state)
        return value

    losses = [float(np.asarray(one()))]
    found["first_call_s"] = time.perf_counter() - begin
    losses += [float(np.asarray(one())) for _ in range(3)]
    for _ in range(3):
        wait(plus(small))
    if copied is not None:
        found["bytes"] = copied.during(lambda: wait([one() for _ in range(3)][-1]))
        found["bytes_with_loss"] = copied.during(lambda: float(np.asarray(one())))
    found["losses"] = losses
    print(json.dumps(found), flush=True)
    for _ in sys.stdin:
        row = {
            "call": timed(lambda: plus(small), wait),
            "call_and_wait": timed(lambda: wait(plus(small)), lambda made: None),
            "put_and_read": timed(lambda: np.asarray(plus(jax.device_put(x))), wait, 0.3)
            if side != "weft.compile"
            else timed(lambda: np.asarray(plus(x)), wait, 0.3),
            "step": timed(one, wait, 1.5),
            "step_and_loss": timed(lambda: float(np.asarray(one())), lambda made: None, 1.0),
            "peak": peak(side),
        }
        print(json.dumps(row), flush=True)


def peak(side: str) -> int:
    """The peak of allocated bytes of the GPU."""
    if side == "jax cuda":
        import jax

        return int(jax.devices()[0].memory_stats()["peak_bytes_in_use"])
    import torch

    return int(torch.cuda.max_memory_allocated())


def start(side: str, action: str, env: dict[str, str]) -> subprocess.Popen[str]:
    """A process of this script."""
    command = [sys.executable, str(Path(__file__).resolve()), "--serve", action, side]
    environment = os.environ | env | {"PYTHONUNBUFFERED": "1"}
    pipe = subprocess.PIPE
    return subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, text=True, cwd=ROOT)


def measure() -> dict[str, Any]:
    """All sides, in turns."""
    table: dict[str, Any] = {}
    processes = {}
    for side, env in SIDES.items():
        process = start(side, "time", env)
        assert process.stdout is not None
        first = process.stdout.readline()
        if not first:
            print(f"{side} failed", flush=True)
            continue
        table[side], processes[side] = json.loads(first), process
        print(side, first.strip(), flush=True)
    rows: dict[str, list[Any]] = {side: [] for side in processes}
    for _ in range(ROUNDS):
        for side, process in processes.items():
            assert process.stdin is not None and process.stdout is not None
            process.stdin.write("\n")
            process.stdin.flush()
            rows[side].append(json.loads(process.stdout.readline()))
    for side, process in processes.items():
        assert process.stdin is not None
        process.stdin.close()
        process.wait()
        for name in rows[side][0]:
            table[side][name] = statistics.median(row[name] for row in rows[side])
    return table


def markdown(table: dict[str, Any]) -> str:
    """The table of times."""
    sides = [*table]
    lines = [f"| | {' | '.join(sides)} |", f"|---|{'---|' * len(sides)}"]
    shown = {
        "call": ("a call of a small program, back to back", "us", 1e3),
        "call_and_wait": ("the same, waited for", "us", 1e3),
        "put_and_read": ("put, call, read: 4 KB", "us", 1e3),
        "step": ("training step of a layer, back to back", "ms", 1),
        "step_and_loss": ("the same, reading the loss", "ms", 1),
        "first_call_s": ("first call of the step", "s", 1),
        "peak": ("peak of GPU memory", "GB", 1e-9),
        "bytes": ("bytes copied in 3 steps, to the GPU and to the host", "", None),
        "bytes_with_loss": ("and in a step whose loss is read", "", None),
    }
    for name, (label, unit, scale) in shown.items():
        cells = []
        for side in sides:
            value = table[side].get(name)
            if value is None:
                cells.append("")
            elif scale is None:
                cells.append(" and ".join(map(str, value)))
            else:
                cells.append(f"{value * scale:.{1 if unit == 'us' else 3}f} {unit}")
        lines.append(f"| {label} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", nargs="+", default=["check", "time"])
    parser.add_argument("--markdown", type=Path)
    parser.add_argument("--serve", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        action, side = given.serve
        serve(side) if action == "time" else check()
        return
    if "check" in given.only:
        process = start(
            "plugin", "check", CHECK | {"XLA_FLAGS": "--xla_force_host_platform_device_count=8"}
        )
        print(process.communicate()[0], flush=True)
    if "time" in given.only:
        made = markdown(measure())
        print(made)
        if given.markdown:
            given.markdown.write_text(made + "\n")


if __name__ == "__main__":
    main()
