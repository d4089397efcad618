"""How fast Weft reads, walks, rewrites, verifies and prints a large program, beside jaxlib's MLIR.

    python benchmarks/ir.py [--layers 32] [--rounds 7]

The program is the training step (forward, backward, Adam) of a transformer, lowered by JAX. Both
sides do each thing in turn, again and again; the table shows medians.
"""

from __future__ import annotations

import argparse
import gc
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import jax
import jaxlib
from jaxlib.mlir import ir, passmanager
from rich.console import Console
from rich.table import Table

import weft
from tests.programs import adam_step, bytecode, transformer_weights
from weft.capture.stablehlo.mlir_parser import make_context
from weft.capture.stablehlo.parser import PARSER
from weft.ir.module import Module, visit
from weft.ir.read import read_module
from weft.ir.verify import verify
from weft.ops import BY_NAME
from weft.optimize import cse, drop_dead

WIDTH, TOKENS, BATCH, LENGTH = 256, 512, 8, 64


def training_step(layers: int) -> bytes:
    """The program, as bytecode with locations."""

    def spec(*shape: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, "float32")

    weights = transformer_weights(layers, WIDTH, TOKENS, spec)
    tokens = jax.ShapeDtypeStruct((BATCH, LENGTH), "int32")
    lowered = jax.jit(adam_step).lower(weights, weights, weights, spec(), tokens, tokens)
    return bytecode(lowered.compiler_ir("stablehlo"))


class Clock:
    """The times of everything that is measured, by name."""

    def __init__(self) -> None:
        self.times: dict[str, list[float]] = {}

    def __call__(self, name: str, function: Callable[[], object]) -> object:
        """Run a function once and note its time."""
        gc.collect()
        begin = time.perf_counter()
        result = function()
        self.times.setdefault(name, []).append(1e3 * (time.perf_counter() - begin))
        return result

    def median(self, name: str) -> float:
        """Milliseconds."""
        return statistics.median(self.times[name])


def count(module: Module) -> int:
    """The nodes, by a visit of each."""
    seen = 0

    def see(_: object) -> None:
        nonlocal seen
        seen += 1

    for function in module.functions.values():
        visit(function.body, see)
    return seen


def one_round(clock: Clock, raw: bytes, context: ir.Context) -> None:
    """Everything once, jaxlib and Weft in turn."""
    theirs = clock("jaxlib read bytecode", lambda: ir.Module.parse(raw, context))
    assert isinstance(theirs, ir.Module)
    text = clock("jaxlib print", lambda: theirs.operation.get_asm(enable_debug_info=True))
    plain = clock("jaxlib print plain", lambda: theirs.operation.get_asm())
    assert isinstance(text, str) and isinstance(plain, str)
    clock("jaxlib read text", lambda: ir.Module.parse(text, context))
    clock("jaxlib verify", lambda: theirs.operation.verify())
    passes = passmanager.PassManager.parse("builtin.module(cse)", context)
    clock("jaxlib cse", lambda: passes.run(theirs.operation))

    ours = clock("weft read bytecode", lambda: weft.parse(raw))
    assert isinstance(ours, Module)
    generic = clock("weft parser process", lambda: PARSER.generic_text(raw, None))
    assert isinstance(generic, str)
    clock("weft build", lambda: read_module(generic, BY_NAME))
    clock("weft read text", lambda: weft.parse(text))
    clock("weft walk", lambda: sum(1 for _ in ours.nodes()))
    clock("weft visit", lambda: count(ours))
    clock("weft print", lambda: ours.text(locations=True))
    clock("weft print plain", lambda: ours.text())
    clock("weft verify", lambda: verify(ours))
    clock("weft cse", lambda: cse(ours))
    clock("weft drop_dead", lambda: drop_dead(ours))


ROWS = (
    ("read bytecode", "weft read bytecode", "jaxlib read bytecode"),
    ("  parser process (parse, print, pipe)", "weft parser process", None),
    ("  build from generic text", "weft build", None),
    ("read text", "weft read text", "jaxlib read text"),
    ("walk (generator)", "weft walk", None),
    ("walk (visit)", "weft visit", None),
    ("print with locations", "weft print", "jaxlib print"),
    ("print", "weft print plain", "jaxlib print plain"),
    ("verify", "weft verify", "jaxlib verify"),
    ("cse", "weft cse", "jaxlib cse"),
    ("drop_dead", "weft drop_dead", None),
)


def show(clock: Clock, title: str) -> None:
    """The table."""
    table = Table("milliseconds", title=title, title_justify="left")
    for column in ("Weft", "jaxlib", "ratio"):
        table.add_column(column, justify="right")
    for label, ours, theirs in ROWS:
        mine = clock.median(ours)
        if theirs is None:
            table.add_row(label, f"{mine:.1f}", "", "")
        else:
            other = clock.median(theirs)
            table.add_row(label, f"{mine:.1f}", f"{other:.1f}", f"{mine / other:.2f}")
    Console(width=100).print(table)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    raw = training_step(arguments.layers)
    context = make_context()
    clock = Clock()
    one_round(Clock(), raw, context)  # everything is warm then
    for _ in range(arguments.rounds):
        one_round(clock, raw, context)
    module = weft.parse(raw)
    merged = cse(module)
    print(f"machine  {platform.processor() or platform.machine()}, {cpu()}, {platform.platform()}")
    print(f"python   {platform.python_version()}, jaxlib {jaxlib.__version__}")
    print(f"command  python benchmarks/ir.py --layers {arguments.layers}", end=" ")
    print(f"--rounds {arguments.rounds}")
    print(f"shapes   width {WIDTH}, {TOKENS} tokens, batch {BATCH} x {LENGTH}, f32")
    print(f"program  {count(module):,} nodes, {count(merged):,} after cse, {len(raw):,} bytes")
    show(clock, f"transformer training step, {arguments.layers} layers")


def cpu() -> str:
    """The model of the processor, where the system tells."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return "unknown processor"
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{len(names)} x {names[0]}" if names else "unknown processor"


if __name__ == "__main__":
    main()
