"""How fast Weft gives every value its sharding, beside Shardy's `sdy-propagation-pipeline`.

    python benchmarks/shard.py [--rounds 7] [--check]

The program is the training step (forward, backward, Adam) of a transformer, lowered by JAX: batches
are split along one axis, weights along another. Both sides start from the same module in memory and
do all of it (import, propagation, export), in turn, again and again; the table shows medians of the
processor time. Both run on one thread; Python's garbage is collected between the runs.
"""

from __future__ import annotations

import argparse
import difflib
import gc
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import jax
import jaxlib
from jaxlib.mlir import ir, passmanager
from rich.console import Console
from rich.table import Table

from tests.programs import adam_step, transformer_weights
from weft.capture import parse
from weft.capture.stablehlo.mlir_parser import make_context
from weft.ir.module import Module
from weft.mesh import Mesh
from weft.shard import propagate, shard

WIDTH, TOKENS, BATCH, LENGTH = 512, 1024, 64, 64
MESHES = {
    "2x4": Mesh(data=2, model=4),
    "64x64x8": Mesh(data=64, model=64, more=8),
}
CASES = ((4, "2x4"), (32, "2x4"), (32, "64x64x8"))
# How arguments are split, by the end or the whole of their name.
SPECS = {
    "['up']": '[{}, {"model"}]',
    "['down']": '[{"model"}, {}]',
    "['q']": '[{}, {"model"}]',
    "['k']": '[{}, {"model"}]',
    "['v']": '[{}, {"model"}]',
    "['o']": '[{"model"}, {}]',
    "[4]": '[{"data"}, {}]',
    "[5]": '[{"data"}, {}]',
}


def training_step(layers: int) -> tuple[Module, list[str]]:
    """The program, and the names of its arguments."""

    def spec(*shape: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, "float32")

    weights = transformer_weights(layers, WIDTH, TOKENS, spec)
    tokens = jax.ShapeDtypeStruct((BATCH, LENGTH), "int32")
    arguments = (weights, weights, weights, spec(), tokens, tokens)
    names = [jax.tree_util.keystr(p) for p, _ in jax.tree_util.tree_flatten_with_path(arguments)[0]]
    return parse(jax.jit(adam_step).lower(*arguments).as_text()), names


def annotated(module: Module, names: list[str], mesh: Mesh) -> Module:
    """The program on a mesh, with shardings on its weights and batches."""
    main = module.function("main")
    held = main.arg_attrs or ((),) * len(names)
    attrs = []
    for name, old in zip(names, held, strict=True):
        spec = SPECS.get(name) or SPECS.get(name[name.rindex("[") :] if "['" in name else "")
        more = (("sdy.sharding", f"#sdy.sharding<@mesh, {spec}>"),) if spec else ()
        attrs.append((*old, *more))
    functions = {**module.functions, "main": replace(main, arg_attrs=tuple(attrs))}
    return replace(module, functions=functions, meshes={"mesh": mesh})


class Shardy:
    """The pipeline of the copy inside jaxlib."""

    def __init__(self, text: str) -> None:
        self.context = make_context()
        self.text = text
        with self.context:
            self.passes = passmanager.PassManager.parse("builtin.module(sdy-propagation-pipeline)")

    def fresh(self) -> Any:
        """The program, not yet sharded."""
        with self.context, ir.Location.unknown():
            return ir.Module.parse(self.text)

    def run(self, module: Any) -> Any:
        """Shard a program in place."""
        with self.context, ir.Location.unknown():
            self.passes.run(module.operation)
        return module

    def generic(self, module: Any) -> str:
        """A program in the form in which both sides are compared."""
        return str(module.operation.get_asm(print_generic_op_form=True))


def timed(function: Callable[[], object]) -> float:
    """Milliseconds of one run; what came before is cleaned up first."""
    gc.collect()
    gc.disable()
    begin = time.process_time()
    function()
    taken = time.process_time() - begin
    gc.enable()
    return 1e3 * taken


def measure(module: Module, rounds: int) -> tuple[float, float, float]:
    """The medians of Shardy, of Weft, and of Weft's propagation without the export."""
    shardy = Shardy(module.text())
    times: tuple[list[float], ...] = ([], [], [])
    for n in range(rounds + 1):
        theirs = shardy.fresh()
        one = (
            timed(lambda: shardy.run(theirs)),  # noqa: B023  # run at once
            timed(lambda: shard(module)),
            timed(lambda: propagate(module)),
        )
        for held, taken in zip(times, one, strict=True):
            if n:  # the first round only warms up
                held.append(taken)
    theirs_median, ours, propagated = (statistics.median(held) for held in times)
    return theirs_median, ours, propagated


def check(module: Module) -> None:
    """Both give every value the same sharding."""
    shardy = Shardy(module.text())
    theirs = shardy.generic(shardy.run(shardy.fresh()))
    shardy.text = shard(module).text()
    ours = shardy.generic(shardy.fresh())
    differ = [
        line
        for line in difflib.unified_diff(theirs.splitlines(), ours.splitlines(), n=0, lineterm="")
        if line[0] in "+-" and "sdy.mesh" not in line and line[:3] not in ("---", "+++")
    ]
    assert not differ, "\n".join(differ[:8])


def main() -> None:
    """Measure every case and print the table."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rounds", type=int, default=7)
    options.add_argument("--check", action="store_true", help="compare the results, too")
    arguments = options.parse_args()
    table = Table(title="Shardings for every value: milliseconds of processor time, medians")
    for head in ("layers", "mesh", "nodes", "Shardy", "Weft", "ratio", "Weft's propagation"):
        table.add_column(head, justify="right")
    programs = {layers: training_step(layers) for layers, _ in CASES}
    for layers, mesh in CASES:
        module = annotated(*programs[layers], MESHES[mesh])
        if arguments.check:
            check(module)
        theirs, ours, propagated = measure(module, arguments.rounds)
        nodes = sum(1 for _ in module.nodes())
        table.add_row(
            f"{layers}",
            mesh,
            f"{nodes:,}",
            f"{theirs:,.0f}",
            f"{ours:,.0f}",
            f"{theirs / ours:.1f}",
            f"{propagated:,.0f}",
        )
    console = Console()
    console.print(table)
    console.print(
        f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, "
        f"Python {platform.python_version()}, jaxlib {jaxlib.__version__}; width {WIDTH}, "
        f"{TOKENS} tokens, batch {BATCH} x {LENGTH}; {arguments.rounds} rounds"
    )


if __name__ == "__main__":
    main()
