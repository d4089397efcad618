"""Whole steps on virtual devices: Weft beside JAX with forced host devices, and torch.compile.

    python benchmarks/cpu_steps.py [--devices 1 8 64 256] [--only forward-256] [--quick]

The programs are plain JAX, jit with shardings, tensor by data parallel: a transformer block's
forward pass, and a training step of it (forward, backward, Adam) whose state is donated. Every side
runs in a process of its own: JAX with `--xla_force_host_platform_device_count=N`, torch.compile on
one device. The sides take turns; medians. Further tables: how long it takes until the kernels of a
training step of 32 layers are there, beside XLA's whole compile; and the memory of a training step,
beside XLA's own account of it.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

from benchmarks.cpu_rows import Row, Runner, is_busy, race_runners, use_busy

MESHES = {1: (1, 1), 8: (2, 4), 64: (8, 8), 256: (16, 16)}  # data by model
RATE, FIRST, SECOND, TINY = 1e-3, 0.9, 0.999, 1e-8  # of Adam
Side = tuple[Callable[[], object], dict[str, Any]]


@dataclass(frozen=True)
class Shape:
    """The sizes of a transformer block, and what is asked of JAX's time over Weft's."""

    width: int
    heads: int
    batch: int
    length: int
    trains: bool
    goals: tuple[float, ...]  # for each number of devices

    @property
    def title(self) -> str:
        """What the table is called."""
        what = "training step" if self.trains else "forward pass"
        return f"Transformer block, {what}, width {self.width}, {self.batch} x {self.length} tokens"


SHAPES = {
    "forward-256": Shape(256, 16, 64, 64, False, (1.5, 2, 3, 5)),
    "forward-1024": Shape(1024, 16, 16, 512, False, (1.5, 1.8, 1.8, 2.3)),
    "training-256": Shape(256, 16, 64, 64, True, (1.5, 2, 3, 6)),
}


# The programs, in JAX


def weights(shape: Shape) -> dict[str, Any]:
    """Weights of a block."""
    draw, width = np.random.default_rng(0), shape.width
    sizes = {"q": (1, 1), "k": (1, 1), "v": (1, 1), "o": (1, 1), "up": (1, 4), "down": (4, 1)}
    made: dict[str, Any] = {
        name: (draw.standard_normal((a * width, b * width)) / np.sqrt(a * width)).astype("f")
        for name, (a, b) in sizes.items()
    }
    made |= {name: np.ones(width, "f") for name in ("gain1", "gain2")}
    made |= {name: np.zeros(width, "f") for name in ("shift1", "shift2", "bias2")}
    return made | {"bias1": np.zeros(4 * width, "f")}


def tokens(shape: Shape) -> Any:
    """What the block is given."""
    draw = np.random.default_rng(1)
    return draw.standard_normal((shape.batch, shape.length, shape.width)).astype("f")


def specs() -> tuple[dict[str, Any], Any]:
    """How weights and tokens are split."""
    from jax.sharding import PartitionSpec as P

    column, row = P(None, "model"), P("model", None)
    split = dict.fromkeys(("q", "k", "v", "up"), column) | {"o": row, "down": row}
    split |= dict.fromkeys(("gain1", "gain2", "shift1", "shift2", "bias2"), P())
    return split | {"bias1": P("model")}, P("data")


def forward(shape: Shape) -> Callable[[Any, Any], Any]:
    """The block: attention and a perceptron, each after a layer norm and beside a residual."""
    import jax
    import jax.numpy as jnp

    size = shape.width // shape.heads

    def norm(x: Any, gain: Any, shift: Any) -> Any:
        centred = x - x.mean(-1, keepdims=True)
        spread = (centred**2).mean(-1, keepdims=True)
        return centred * jax.lax.rsqrt(spread + 1e-5) * gain + shift

    def run(w: Any, x: Any) -> Any:
        y = norm(x, w["gain1"], w["shift1"])
        split = (*x.shape[:2], shape.heads, size)
        q, k, v = ((y @ w[n]).reshape(split).transpose(0, 2, 1, 3) for n in "qkv")
        scores = jnp.einsum("bhqd,bhkd->bhqk", q, k) * np.float32(size**-0.5)
        mixed = jnp.einsum("bhqk,bhkd->bhqd", jax.nn.softmax(scores, -1), v)
        x = x + mixed.transpose(0, 2, 1, 3).reshape(x.shape) @ w["o"]
        hidden = jax.nn.gelu(norm(x, w["gain2"], w["shift2"]) @ w["up"] + w["bias1"])
        return x + hidden @ w["down"] + w["bias2"]

    return run


def training(shape: Shape) -> Callable[[Any, Any], Any]:
    """One step of Adam: the new state, and the loss before it."""
    import jax
    import jax.numpy as jnp

    block = forward(shape)

    def loss(w: Any, x: Any) -> Any:
        return jnp.mean(block(w, x) ** 2)

    def step(state: Any, x: Any) -> Any:
        w, first, second, count = state
        value, slopes = jax.value_and_grad(loss)(w, x)
        count = count + 1
        first = jax.tree.map(lambda m, g: FIRST * m + (1 - FIRST) * g, first, slopes)
        second = jax.tree.map(lambda v, g: SECOND * v + (1 - SECOND) * g * g, second, slopes)
        scale = RATE * jnp.sqrt(1 - SECOND**count) / (1 - FIRST**count)

        def better(w: Any, m: Any, v: Any) -> Any:
            return w - scale * m / (jnp.sqrt(v) + TINY)

        return (jax.tree.map(better, w, first, second), first, second, count), value

    return step


@dataclass
class Program:
    """A function, its arguments, how they are split, and how its results are."""

    function: Callable[..., Any]
    arguments: tuple[Any, Any]
    ins: tuple[Any, Any]
    outs: Any


def program(name: str) -> Program:
    """A step by name."""
    from jax.sharding import PartitionSpec as P

    shape = SHAPES[name]
    made, x, (split, rows) = weights(shape), tokens(shape), specs()
    if not shape.trains:
        return Program(forward(shape), (made, x), (split, rows), rows)
    zeros = [{n: np.zeros_like(w) for n, w in made.items()} for _ in range(2)]
    state, states = (made, *zeros, np.float32(0)), (split, split, split, P())
    return Program(training(shape), (state, x), (states, rows), (states, P()))


class Stepper:
    """Runs a step again and again; a training step goes on with the state that it made."""

    def __init__(self, name: str, call: Callable[..., Any], given: Any, wait: Any) -> None:
        self.trains, self.call, self.wait = SHAPES[name].trains, call, wait
        self.given, self.x = given

    def __call__(self) -> Any:
        made = self.wait(self.call(self.given, self.x))
        if not self.trains:
            return made
        self.given, value = made
        return value

    def check(self) -> list[float]:
        """Numbers by which sides are compared: of the result, or the first losses."""
        if self.trains:
            return [float(np.asarray(self())) for _ in range(3)]
        made = np.asarray(self(), np.float64)
        return [float(np.abs(made).mean()), float(made[0, 0, 0]), float(made[-1, -1, -1])]


# The sides, each in a process of its own


def jax_side(name: str, count: int) -> Side:
    """JAX, with as many devices as there are."""
    import jax
    from jax.sharding import AxisType, NamedSharding

    case = program(name)
    names = ("data", "model")
    mesh = jax.make_mesh(MESHES[count], names, axis_types=(AxisType.Auto,) * 2)
    placed = lambda tree: jax.tree.map(lambda p: NamedSharding(mesh, p), tree)  # noqa: E731
    jitted = jax.jit(
        case.function,
        in_shardings=placed(case.ins),
        out_shardings=placed(case.outs),
        donate_argnums=0 if SHAPES[name].trains else (),
    )
    given = jax.tree.map(jax.device_put, case.arguments, placed(case.ins))
    begin = time.perf_counter()
    compiled = jitted.lower(*given).compile()
    facts: dict[str, Any] = {"compile": time.perf_counter() - begin}
    said = compiled.memory_analysis()
    kept = said.argument_size_in_bytes + said.output_size_in_bytes - said.alias_size_in_bytes
    facts["memory"] = count * (kept + said.temp_size_in_bytes)
    run = Stepper(name, compiled, given, jax.block_until_ready)
    return run, facts | {"check": run.check()}


def weft_side(name: str, count: int) -> Side:
    """Weft, in lockstep."""
    import jax

    import weft
    from weft.array import put
    from weft.mesh import Mesh

    case, (data, model) = program(name), MESHES[count]
    mesh = Mesh(data=data, model=model)
    begin = time.perf_counter()
    compiled = weft.compile(
        case.function,
        *case.arguments,
        mesh=mesh,
        in_shardings=case.ins,
        out_shardings=case.outs,
        donate_argnums=0 if SHAPES[name].trains else (),
    )
    facts: dict[str, Any] = {"compile": time.perf_counter() - begin}
    facts["memory"] = compiled.program.local.memory().peak
    given = jax.tree.map(lambda a, s: put(a, s, mesh), case.arguments, case.ins)
    wait = lambda made: jax.tree.map(lambda a: a.wait(), made)  # noqa: E731
    run = Stepper(name, compiled, given, wait)
    return run, facts | {"check": run.check()}


def torch_side(name: str) -> Side:
    """torch.compile on one device, with the attention and the Adam that torch has."""
    import torch
    from torch.nn import functional

    torch.set_num_threads(os.cpu_count() or 1)
    shape = SHAPES[name]
    size, width = shape.width // shape.heads, (shape.width,)
    w = {n: torch.from_numpy(a) for n, a in weights(shape).items()}
    x = torch.from_numpy(tokens(shape))

    def block(w: Any, x: Any) -> Any:
        y = functional.layer_norm(x, width, w["gain1"], w["shift1"])
        split = (*x.shape[:2], shape.heads, size)
        q, k, v = ((y @ w[n]).view(split).transpose(1, 2) for n in "qkv")
        mixed = functional.scaled_dot_product_attention(q, k, v)
        x = x + mixed.transpose(1, 2).reshape(x.shape) @ w["o"]
        y = functional.layer_norm(x, width, w["gain2"], w["shift2"])
        hidden = functional.gelu(y @ w["up"] + w["bias1"], approximate="tanh")
        return x + hidden @ w["down"] + w["bias2"]

    if not shape.trains:
        with torch.no_grad():
            ready = torch.compile(block)
            ready(w, x)

        def infer(w: Any, x: Any) -> Any:
            with torch.no_grad():
                return ready(w, x)

        run = Stepper(name, infer, (w, x), lambda made: made)
        return run, {"check": run.check()}
    leaves = {n: a.clone().requires_grad_() for n, a in w.items()}
    adam = torch.optim.Adam(leaves.values(), RATE, (FIRST, SECOND), TINY, fused=True)
    loss = torch.compile(lambda w, x: (block(w, x) ** 2).mean())

    def train(w: Any, x: Any) -> Any:
        adam.zero_grad()
        value = loss(w, x)
        value.backward()
        adam.step()
        return w, value.detach()

    run = Stepper(name, train, (leaves, x), lambda made: made)
    return run, {"check": run.check()}


# The tables


def alike(one: Sequence[float], other: Sequence[float]) -> bool:
    """Whether two sides computed the same, as far as f32 can."""
    return bool(np.allclose(one, other, rtol=2e-3, atol=2e-3))


def measured(name: str, count: int, rounds: int, *, torch: bool) -> tuple[Row, Row]:
    """The row of a step at a number of devices, and that of its memory."""
    shape = SHAPES[name]
    flags = {"XLA_FLAGS": f"--xla_force_host_platform_device_count={count}"}
    sides = {"weft": Runner("benchmarks.cpu_steps:weft_side", (name, count))}
    cpu = flags | {"JAX_PLATFORMS": "cpu"}
    sides["JAX"] = Runner("benchmarks.cpu_steps:jax_side", (name, count), cpu)
    if count == 1 and torch:
        sides["torch.compile"] = Runner("benchmarks.cpu_steps:torch_side", (name,))
    checks = {label: side.facts["check"] for label, side in sides.items()}
    wrong = [label for label, found in checks.items() if not alike(found, checks["JAX"])]
    if wrong:
        raise SystemExit(f"{name} on {count} devices: {', '.join(wrong)} differs: {checks}")
    times = race_runners(sides, rounds)
    facts = {label: side.facts for label, side in sides.items()}
    for side in sides.values():
        side.close()
    goal = shape.goals[list(MESHES).index(count)]
    devices = f"{count} device{'s' if count > 1 else ''}"
    compiled = f"compiled in {facts['weft']['compile']:.1f} s, JAX {facts['JAX']['compile']:.1f} s"
    ours = times.pop("weft")
    memory = Row(
        "Memory of a step, all devices", name, devices, facts["weft"]["memory"],
        {"JAX": facts["JAX"]["memory"]}, unit="B",
    )  # fmt: skip
    goals = {"torch.compile": 1.0}
    return Row(shape.title, name, devices, ours, times, goal, goals, note=compiled), memory


def compile_rows(layers: int) -> Iterator[Row]:
    """How long it takes to prepare the kernels of a training step, beside XLA's whole compile."""
    from benchmarks import compile as compile_benchmark

    bytecode = compile_benchmark.program(layers)
    what = "processor" if is_busy() else "whole"
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "program.mlirbc"
        file.write_bytes(bytecode)
        theirs = compile_benchmark.xla_times(file)[what]
        cache = {"WEFT_CACHE": str(Path(folder) / "cache")}
        title = f"Preparing a training step of {layers} layers on 8 devices"
        for case, goal in (("kernels, cold", 5.0), ("kernels, warm", 50.0)):
            side = Runner("benchmarks.cpu_steps:prepared", (str(file),), cache)
            ours = side.facts["prepare, processor" if is_busy() else "prepare"]
            note = f"all stages {side.facts[what]:.2f} s"
            side.close()
            yield Row(title, case, f"{layers} layers", ours, {"XLA": theirs}, goal, note=note)


def prepared(file: str) -> Side:
    """Compile a program as far as it can be run; how long every stage took."""
    from benchmarks import compile as compile_benchmark

    return (lambda: None), compile_benchmark.weft_times(Path(file).read_bytes(), 1)


def rows(quick: bool, names: Sequence[str] = (), counts: Sequence[int] = ()) -> Iterator[Row]:
    """Every row, as it is measured; `quick` leaves out the large ones."""
    names = names or [n for n in SHAPES if not quick or n != "forward-1024"]
    memory = []
    for name in names:
        for count in counts or ((1, 8) if quick else tuple(MESHES)):
            row, held = measured(name, count, 3 if quick else 7, torch=not quick)
            yield row
            if SHAPES[name].trains:
                memory.append(held)
    yield from memory


def main() -> None:
    """Measure and print the tables."""
    from benchmarks.cpu import show

    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--devices", type=int, nargs="*", default=[], choices=list(MESHES))
    options.add_argument("--only", nargs="*", default=[], choices=list(SHAPES))
    options.add_argument("--layers", type=int, default=32, help="of the step that is prepared")
    options.add_argument("--no-compile", action="store_true", help="leave out preparing")
    options.add_argument("--quick", action="store_true", help="fewer devices and rounds")
    options.add_argument("--busy", action="store_true", help="seconds of the processor")
    given = options.parse_args()
    if given.busy:
        use_busy()
    show(rows(given.quick, given.only, given.devices))
    if not given.no_compile:
        show(compile_rows(given.layers))


if __name__ == "__main__":
    main()
