"""How fast a training step becomes a program for every device: Weft beside XLA, in one run.

    python benchmarks/compile.py [--layers 32] [--rounds 3] [--level 1]

The program is the training step (forward, backward, Adam) of a transformer on 8 devices (2 x 4), as
JAX lowers it: batches split along one axis, weights along the other. Both sides get the same MLIR
bytecode, in turn. Weft: reading it, shardings, partitioning; then optimizing, and preparing the
program that runs, kernels included (what the cache has of them is not compiled again). XLA: the
times that its own log gives for `shardy-xla` and `spmd-partitioning` (what comes before and after
them, such as reading, is left out), and the whole of `compile`. Wall clock and, where it is known,
processor time, the best of the rounds; XLA runs in a process of its own, on all cores.
"""

from __future__ import annotations

import argparse
import gc
import io
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")
DEVICES, MESH = 8, "2x4"
PASSES = ("shardy-xla", "spmd-partitioning")
_PASS = re.compile(r"HLO pass: ([\w-]+) time: .*?\((\d+) us\)")


def program(layers: int) -> bytes:
    """The annotated training step as MLIR bytecode."""
    from jaxlib.mlir import ir

    from benchmarks.shard import MESHES, annotated, training_step
    from weft.capture.stablehlo.mlir_parser import make_context

    module = annotated(*training_step(layers), MESHES[MESH])
    with make_context(), ir.Location.unknown():
        buffer = io.BytesIO()
        ir.Module.parse(module.text()).operation.write_bytecode(file=buffer)
    return buffer.getvalue()


# Weft


def weft_times(bytecode: bytes, level: int) -> dict[str, float]:
    """Seconds of every stage."""
    from weft.capture.stablehlo.mlir_parser import read_in_process
    from weft.ir.read import read_module
    from weft.ops import BY_NAME
    from weft.optimize import optimize
    from weft.partition import partition
    from weft.pipeline import local_program
    from weft.shard import shard
    from weft.targets import target_named

    stages: tuple[tuple[str, Callable[[Any], Any]], ...] = (
        ("read", lambda held: read_module(read_in_process(held), BY_NAME)),
        ("shard", shard),
        ("partition", partition),
        ("optimize", lambda held: optimize(held, level)),  # type: ignore[arg-type]
        ("prepare", lambda held: local_program(held, target=target_named(None))),
    )
    times: dict[str, float] = {"processor": 0.0}
    held: Any = bytecode
    for name, run in stages:
        gc.collect()
        begin, busy = time.perf_counter(), time.process_time()
        held = run(held)
        times[name] = time.perf_counter() - begin
        times[f"{name}, processor"] = time.process_time() - busy
        times["processor"] += times[f"{name}, processor"]
    return times | {"whole": sum(times[name] for name, _ in stages)}


# XLA


def xla_times(file: Path) -> dict[str, float]:
    """Seconds of XLA's passes and of its whole compile."""
    env = os.environ | {
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={DEVICES}",
        "TF_CPP_MIN_LOG_LEVEL": "0",
        "TF_CPP_VMODULE": "hlo_pass_pipeline=1",
    }
    line = [sys.executable, str(Path(__file__).resolve()), "--xla", str(file)]
    done = subprocess.run(line, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"XLA's side failed:\n{done.stderr[-2000:]}")
    times = dict.fromkeys(PASSES, 0.0)
    for name, taken in _PASS.findall(done.stderr):
        if name in times:
            times[name] += int(taken) / 1e6
    return times | json.loads(done.stdout)


def compile_with_xla(file: str) -> None:
    """The other process: compile and print the seconds."""
    import jax
    from jax._src.lib import xla_client

    from tests.oracles.xla_local import options

    devices = jax.devices("cpu")
    client: Any = devices[0].client
    bytecode = Path(file).read_bytes()
    begin, busy = time.perf_counter(), time.process_time()
    client.compile_and_load(bytecode, xla_client.DeviceList(tuple(devices)), options(DEVICES))
    taken = {"whole": time.perf_counter() - begin, "processor": time.process_time() - busy}
    print(json.dumps(taken))


# The table


def measure(bytecode: bytes, rounds: int, level: int) -> tuple[dict[str, float], dict[str, float]]:
    """The best times of Weft's stages and of XLA's passes."""
    ours, theirs = [], []
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "program.mlirbc"
        file.write_bytes(bytecode)
        weft_times(bytecode, level)  # the first round only warms up
        for _ in range(rounds):
            ours.append(weft_times(bytecode, level))
            theirs.append(xla_times(file))
    return _best(ours), _best(theirs)


def _best(rounds: list[dict[str, float]]) -> dict[str, float]:
    return {name: min(r[name] for r in rounds) for name in rounds[0]}


def main() -> None:
    """Measure and print the table."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--layers", type=int, default=32)
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--level", type=int, default=1, choices=(0, 1, 2))
    options.add_argument("--xla", metavar="FILE", help="only compile this with XLA")
    given = options.parse_args()
    if given.xla:
        compile_with_xla(given.xla)
        return
    import jaxlib
    from rich.console import Console
    from rich.table import Table

    bytecode = program(given.layers)
    ours, theirs = measure(bytecode, given.rounds, given.level)
    table = Table(title=f"Compiling a training step of {given.layers} layers: seconds, best")
    for head in ("", "XLA", "Weft", "ratio"):
        table.add_column(head, justify="right" if head else "left")
    local = ours["read"] + ours["shard"] + ours["partition"]
    passes = sum(theirs[name] for name in PASSES)
    rows = (
        ("reading", None, ours["read"]),
        ("shardings", theirs["shardy-xla"], ours["shard"]),
        ("partitioning", theirs["spmd-partitioning"], ours["partition"]),
        ("shardings + partitioning", passes, ours["shard"] + ours["partition"]),
        ("from bytecode to local program", passes, local),
        ("the whole compile", theirs["whole"], ours["whole"]),
        ("the whole compile, processor time", theirs["processor"], ours["processor"]),
    )
    for name, their, our in rows:
        shown = ("", "") if their is None else (f"{their:.2f}", f"{their / our:.1f}")
        table.add_row(name, shown[0], f"{our:.2f}", shown[1])
    console = Console()
    console.print(table)
    console.print(
        f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, Python "
        f"{platform.python_version()}, jaxlib {jaxlib.__version__}; mesh {MESH}, optimization "
        f"level {given.level} ({ours['optimize']:.2f} s), prepare {ours['prepare']:.2f} s; "
        f"{given.rounds} rounds"
    )


if __name__ == "__main__":
    main()
