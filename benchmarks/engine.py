"""The engine of the LLVM target: what a launch costs, and how long kernels take to compile.

    python benchmarks/engine.py [--rounds 30]

Launches are of a kernel that does nothing: `in the caller` has one chunk, `on all threads` several
(a fork and a join). `one call` is a run of one command, from Python. Compiling is measured on the
kernels of examples/llama.py's training step: one by one, on all threads, and from the cache.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from weft.cache.store import DiskStore
from weft.emit.llvm.emitted import Emitted, Phase
from weft.emit.llvm.jit.engine import load
from weft.emit.llvm.jit.linking import Linked
from weft.emit.llvm.jit.objects import objects
from weft.emit.llvm.jit.processor import host, llvm_version
from weft.emit.llvm.pool.commands import CommandList
from weft.emit.llvm.pool.pool import the_pool
from weft.emit.llvm.pool.thread_count import thread_count

ROOT = Path(__file__).resolve().parents[1]
NOTHING = "define void @nothing(ptr %o, ptr %s, i64 %b, i64 %e) {\n  ret void\n}\n"


def median(run: Callable[[], object], rounds: int) -> float:
    """Seconds of a run."""
    taken = []
    for _ in range(rounds):
        begin = time.perf_counter()
        run()
        taken.append(time.perf_counter() - begin)
    return statistics.median(taken)


def launches(rounds: int) -> None:
    """What a command costs."""
    for title, tasks, count in (
        ("in the caller", 1, 10_000),
        ("on all threads, 2 chunks", 2, 1000),
        ("on all threads, 64 chunks", 64, 1000),
        ("one call", 1, 1),
    ):
        (loaded,) = load([Emitted(NOTHING, (Phase("nothing", tasks),))])
        commands = CommandList()
        for _ in range(count):
            commands.kernel(loaded, [])
        nanoseconds = median(commands.run, rounds) / count * 1e9
        print(f"  {title:28}{nanoseconds:10.1f} ns a command")


def texts() -> list[tuple[str, str]]:
    """The kernels of a training step: their names and texts."""
    sys.path.insert(0, str(ROOT / "examples"))
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    from weft.cli import make_parser
    from weft.cli.commands.kernels import compiled_program
    from weft.emit.llvm.texts import emitted
    from weft.run.parts import parts_of

    line = ["kernels", f"{ROOT}/examples/llama.py:train_step", "--mesh", "data=1,model=1"]
    compiled, _ = compiled_program(make_parser().parse_args(line))
    found = {}
    for part in parts_of(compiled.program.local):
        if part.group is not None and part.group.kernel is not None:
            made = emitted(part.group.kernel)
            if made.phases:
                found[made.text] = made.phases[0].function
    return [(name, text) for text, name in found.items()]


def compiling(rounds: int) -> None:
    """How long kernels take."""
    listed = texts()
    size = sum(len(text) for _, text in listed)
    print(f"\n{len(listed)} kernels, {size:,} characters of LLVM text, milliseconds:")
    with tempfile.TemporaryDirectory() as folder:
        for threads in (1, thread_count()):
            os.environ["WEFT_THREADS"] = str(threads)
            taken = []
            for number in range(max(1, rounds // 10)):
                store = DiskStore(Path(folder) / f"{threads}-{number}")
                taken.append(median(lambda: objects(listed, store=store), 1))  # noqa: B023
            cold = statistics.median(taken) * 1e3
            print(
                f"  {f'compiled, threads: {threads}':28}{cold:10.1f}  {cold / len(listed):.1f} each"
            )
        warm = median(lambda: objects(listed, store=store), rounds) * 1e3
        print(f"  {'from the cache':28}{warm:10.1f}")
        made = objects(listed, store=store)
        print(f"  {'linked':28}{median(lambda: Linked(made), rounds) * 1e3:10.1f}")


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=30)
    rounds = parser.parse_args().rounds
    print(
        f"{host().cpu}, threads: {the_pool().threads}, LLVM {llvm_version()}; medians of {rounds}"
    )
    launches(rounds)
    compiling(rounds)


if __name__ == "__main__":
    main()
