"""What follows partitioning must not change a program: optimized, and run in lockstep.

`python -m tests.partition.onward [COUNT]` prints what is wrong with random programs and the corpus.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np

from tests.partition.corpus import corpus_program
from tests.partition.differential import Checked, Wrong, compare, stage
from tests.partition.fuzz import triple
from tests.partition.program import Program
from tests.partition.split import mesh_of
from tests.partition.test_corpus import SAMPLE
from weft.array.stacked import Stacked, stack
from weft.evaluate import evaluate
from weft.ir.module import Module
from weft.ir.types import Array
from weft.optimize import Level, optimize
from weft.pipeline import local_program

LEVELS: tuple[Level, ...] = (1, 2)


def check_onward(program: Program, found: Checked | None = None) -> None:
    """The local program, in lockstep and on every level of optimization, is still right."""
    found = found or program.check()
    run_in_lockstep("lockstep", found.local, found, program.length)
    for level in LEVELS:
        best = stage(f"optimize {level}", partial(optimize, found.local, level), found.local)
        made = stage(f"run {level}", partial(reference, best, found.stacked), best)
        renamed(f"run {level}", best, made, found, program.length)
        run_in_lockstep(f"lockstep {level}", best, found, program.length)


def reference(local: Module, stacked: Sequence[Array]) -> tuple[Array, ...]:
    """What the evaluator gives."""
    devices = mesh_of(local.function("main"), local.meshes).size
    return evaluate(local, *stacked, devices=devices)


def run_in_lockstep(name: str, local: Module, found: Checked, length: int) -> None:
    """Run a program in lockstep and compare."""
    made = stage(name, partial(lockstep, local, found.stacked), local)
    renamed(name, local, made, found, length)


def renamed(name: str, local: Module, made: Sequence[Array], found: Checked, length: int) -> None:
    """Compare; what is wrong names the stage."""
    try:
        compare(local, made, found.expected, length)
    except Wrong as wrong:
        raise Wrong(name, str(wrong), local) from None


def lockstep(local: Module, stacked: Sequence[Array]) -> tuple[Array, ...]:
    """What a program gives in lockstep; arguments and results are stacked by device."""
    program = local_program(local)
    ids = program.mesh.device_ids
    order = np.arange(program.mesh.size) if ids is None else np.asarray(ids)
    given = []
    for index, pieces in enumerate(stacked):
        full = stack(np.ascontiguousarray(pieces[order]), program.sub_axes)
        window = tuple(slice(0, size) for size in program.stack_dims.shape(program.masks[index]))
        given.append(Stacked(full.data[window], program.sub_axes))
    back = np.argsort(order)
    return tuple(s.pieces()[back] for s in program(*given))


def main() -> None:
    """Print what is wrong."""
    counts: Counter[str] = Counter()
    for name, program in programs(int(sys.argv[1]) if len(sys.argv) > 1 else 200):
        try:
            check_onward(program)
            counts["right"] += 1
        except Wrong as wrong:
            counts[wrong.stage] += 1
            if counts[wrong.stage] <= 8:
                print(f"{name}: {str(wrong)[:300]}", flush=True)
    print(dict(counts))


def programs(count: int) -> Iterator[tuple[str, Program]]:
    """A sample of the corpus and random programs."""
    for key in SAMPLE:
        yield " ".join(key), corpus_program(*key)
    for seed in range(count):
        yield f"fuzz {seed}", triple(seed)


if __name__ == "__main__":
    main()
