"""How fast Weft runs a program on virtual devices, beside JAX with as many forced host devices.

    python benchmarks/lockstep.py [--devices 1 8 64 256 1024] [--peers 256] [--rounds 7]

Two programs, both shard_map: a chain of small collectives (256 floats a device), and the forward
pass of a transformer block (width 256, 64 x 64 tokens), tensor by data parallel. JAX runs in a
process of its own with `--xla_force_host_platform_device_count=N`; the two sides take turns, round
by round, and the table shows the medians of the wall time, and of the processor time of all
threads. Beyond `--peers` devices Weft runs alone.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

FLOATS, LINKS = 256, 4
IN_A_ROW = 5  # runs of one side before the other has its turn
WIDTH, HEADS, BATCH, LENGTH = 256, 16, 64, 64
MESHES = {1: (1, 1), 8: (2, 4), 64: (8, 8), 256: (16, 16), 1024: (64, 16), 4096: (64, 16)}


@dataclass
class Case:
    """A program for a mesh: its function of local values, the specs, and whole arguments."""

    mesh: dict[str, int]
    function: Callable[..., Any]
    ins: tuple[Any, ...]
    outs: Any
    arguments: tuple[Any, ...]


def chain(count: int) -> Case:
    """Sums, shifts and gathers of 256 floats a device, one after the other."""
    from jax import lax
    from jax.sharding import PartitionSpec as P

    ring = [(n, (n + 1) % count) for n in range(count)]

    def run(x: Any) -> Any:
        for _ in range(LINKS):
            x = x + lax.psum(x, "i") * (0.5 / count)
            x = lax.ppermute(x, "i", ring) * 0.5
            x = x + lax.all_gather(x, "i", tiled=True)[:FLOATS]
        return x

    given = np.random.default_rng(0).standard_normal(count * FLOATS).astype(np.float32)
    return Case({"i": count}, run, (P("i"),), P("i"), (given,))


def block(count: int) -> Case:
    """The forward pass of a transformer block; heads and hidden units split, batches too."""
    import jax
    import jax.numpy as jnp
    from jax import lax
    from jax.sharding import PartitionSpec as P

    data, model = MESHES[count]
    if count > data * model:  # more devices than there are heads and batches: a third axis
        return _idle(block(data * model), count // (data * model))
    heads, size = HEADS // model, WIDTH // HEADS

    def norm(x: Any, gain: Any) -> Any:
        centred = x - x.mean(-1, keepdims=True)
        return centred * lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * gain

    def run(x: Any, g1: Any, q: Any, k: Any, v: Any, o: Any, g2: Any, up: Any, down: Any) -> Any:
        y = norm(x, g1)
        split = (*x.shape[:2], heads, size)
        queries, keys, values = ((y @ w).reshape(split).transpose(0, 2, 1, 3) for w in (q, k, v))
        scores = queries @ keys.swapaxes(-1, -2) * (1 / np.sqrt(size).astype(np.float32))
        mixed = (jax.nn.softmax(scores, -1) @ values).transpose(0, 2, 1, 3)
        x = x + lax.psum(mixed.reshape(*x.shape[:2], heads * size) @ o, "model")
        return x + lax.psum(jnp.tanh(norm(x, g2) @ up) @ down, "model")

    draw = np.random.default_rng(0)

    def weights(*shape: int) -> Any:
        return (draw.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32)

    column, row = P(None, "model"), P("model", None)
    square = (WIDTH, WIDTH)
    arguments = (
        draw.standard_normal((BATCH, LENGTH, WIDTH)).astype(np.float32),
        np.ones(WIDTH, np.float32),
        *(weights(*square) for _ in range(4)),
        np.ones(WIDTH, np.float32),
        weights(WIDTH, 4 * WIDTH),
        weights(4 * WIDTH, WIDTH),
    )
    ins = (P("data"), P(), column, column, column, row, P(), column, row)
    return Case({"data": data, "model": model}, run, ins, P("data"), arguments)


def _idle(case: Case, more: int) -> Case:
    """The same program with copies of it along one more axis."""
    return Case({"copy": more, **case.mesh}, case.function, case.ins, case.outs, case.arguments)


PROGRAMS = {"collectives": chain, "block": block}


def mapped(case: Case, mesh: Any) -> Any:
    """The program as JAX compiles it."""
    import jax

    return jax.jit(
        jax.shard_map(
            case.function, mesh=mesh, in_specs=case.ins, out_specs=case.outs, check_vma=False
        )
    )


def timed(run: Callable[[], object]) -> tuple[float, float]:
    """Seconds of one run, and of the processor: the mean of a few in a row."""
    begin, busy = time.perf_counter(), time.process_time()
    for _ in range(IN_A_ROW):
        run()
    taken = time.perf_counter() - begin, time.process_time() - busy
    return taken[0] / IN_A_ROW, taken[1] / IN_A_ROW


# The peer: JAX in a process of its own, which answers every line with a time


def peer(name: str, count: int) -> None:
    """Compile a program with JAX, and run it as often as is asked."""
    import jax
    from jax.sharding import AxisType, NamedSharding

    case = PROGRAMS[name](count)
    mesh = jax.make_mesh(
        tuple(case.mesh.values()), tuple(case.mesh), axis_types=(AxisType.Auto,) * len(case.mesh)
    )
    function = mapped(case, mesh)
    given = [
        jax.device_put(a, NamedSharding(mesh, spec))
        for a, spec in zip(case.arguments, case.ins, strict=True)
    ]
    np.save(sys.argv[-1], np.asarray(function(*given)))
    jax.block_until_ready(function(*given))
    print("ready", flush=True)
    for _ in sys.stdin:
        print(*timed(lambda: jax.block_until_ready(function(*given))), flush=True)


class Peer:
    """The other process."""

    def __init__(self, name: str, count: int, results: Path) -> None:
        flags = f"--xla_force_host_platform_device_count={count}"
        environment = os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
        line = [sys.executable, __file__, "--serve", name, str(count), str(results)]
        self.process = subprocess.Popen(
            line, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.answer()

    def answer(self) -> str:
        """The next line that it says."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "JAX has ended"
        return line

    def run(self) -> tuple[float, float]:
        """The time of one run."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        wall, busy = map(float, self.answer().split())
        return wall, busy

    def close(self) -> None:
        """End the process."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


# Weft


class Ours:
    """The same program in lockstep."""

    def __init__(self, name: str, count: int) -> None:
        import jax
        from jax.sharding import AbstractMesh

        from weft.array.stacked import one_for_all, split
        from weft.pipeline import local_program
        from weft.targets import target_named

        case = PROGRAMS[name](count)
        mesh = AbstractMesh(tuple(case.mesh.values()), tuple(case.mesh))
        types = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in case.arguments]
        text = mapped(case, mesh).trace(*types).lower(lowering_platforms=("cpu",)).as_text()
        begin = time.perf_counter()
        self.program = local_program(body_of(text), target=target_named(None))
        self.compiled = time.perf_counter() - begin
        self.given = [
            split(a, s, self.program.mesh, self.program.sub_axes)
            if s
            else one_for_all(a, self.program.sub_axes)
            for a, s in zip(case.arguments, self.program.shardings, strict=True)
        ]

    def run(self) -> tuple[float, float]:
        """The time of one run."""
        return timed(lambda: self.program(*self.given))

    def results(self, shape: tuple[int, ...]) -> Any:
        """The whole result."""
        from weft.array.stacked import assemble

        (stack,) = self.program(*self.given)
        sharding = self.program.result_shardings[0]
        if sharding is None:
            return stack.piece(0)
        return assemble(stack, shape, sharding, self.program.mesh)


def body_of(text: str) -> Any:
    """The body of a shard_map as a local program."""
    from weft.capture import parse
    from weft.ir.module import Function
    from weft.ops.distributed.sharding import ManualComputation

    module = parse(text)
    node = next((n for n in module.nodes() if isinstance(n.op, ManualComputation)), None)
    if node is None:  # on one device nothing is split
        return module
    assert isinstance(node.op, ManualComputation)
    attrs = [
        tuple((("weft.sharding", str(s)),) for s in shardings)
        for shardings in (node.op.in_shardings, node.op.out_shardings)
    ]
    main = Function("main", node.regions[0], None, *attrs)
    return module.with_functions({**module.functions, "main": main})


def measure(name: str, count: int, rounds: int, with_peer: bool, folder: Path) -> dict[str, float]:
    """The medians of both sides, in milliseconds, and how far the results are apart."""
    ours = Ours(name, count)
    results = folder / f"{name}.{count}.npy"
    other = Peer(name, count, results) if with_peer else None
    nothing = (float("nan"), float("nan"))
    times: list[tuple[float, ...]] = []
    for n in range(rounds + 1):
        taken = (*ours.run(), *(other.run() if other else nothing))
        if n:  # the first round only warms up
            times.append(taken)
    medians = [1e3 * statistics.median(column) for column in zip(*times, strict=True)]
    found = dict(zip(("ours", "ours busy", "jax", "jax busy"), medians, strict=True))
    found |= {"compiled": 1e3 * ours.compiled, "apart": float("nan")}
    if other:
        other.close()
        theirs = np.load(results)
        found["apart"] = float(np.abs(ours.results(theirs.shape) - theirs).max())
    return found


def main() -> None:
    """Measure every case and print the table."""
    if "--serve" in sys.argv:
        peer(sys.argv[2], int(sys.argv[3]))
        return
    import tempfile

    from rich.console import Console
    from rich.table import Table

    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--devices", type=int, nargs="*", default=[1, 8, 64, 256, 1024])
    options.add_argument("--programs", nargs="*", default=list(PROGRAMS))
    options.add_argument("--peers", type=int, default=256, help="the most devices JAX is given")
    options.add_argument("--rounds", type=int, default=7)
    arguments = options.parse_args()
    table = Table(title="One run on virtual devices: milliseconds, medians")
    heads = ("program", "devices", "JAX", "Weft", "ratio", "JAX busy", "Weft busy", "ratio")
    for head in (*heads, "compiled in", "apart"):
        table.add_column(head, justify="right")
    with tempfile.TemporaryDirectory() as folder:
        for name in arguments.programs:
            for count in arguments.devices:
                with_peer = count <= arguments.peers
                found = measure(name, count, arguments.rounds, with_peer, Path(folder))
                row = []
                for theirs, mine in (("jax", "ours"), ("jax busy", "ours busy")):
                    row += [found[theirs], found[mine], found[theirs] / found[mine]]
                shown = [f"{n:,.2f}" for n in (*row, found["compiled"])]
                table.add_row(name, str(count), *shown, f"{found['apart']:.1e}")
    console = Console(width=None if sys.stdout.isatty() else 120)
    console.print(table)
    console.print(
        f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, "
        f"Python {platform.python_version()}, numpy {np.__version__}; {arguments.rounds} rounds"
    )


if __name__ == "__main__":
    main()
