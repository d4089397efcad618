"""Predicted lockstep steps beside measured ones on this computer, over a corpus of programs.

    weft calibrate && python benchmarks/predict_here.py [NAME ...] [--meshes 2x4 8] [--json FILE]

Every program of tests/shard/corpus.py runs in lockstep with each of its annotations, and so do the
examples. Arguments lie where the program's own results would. Measured is the least of many steps,
by the clock. Two annotations of a program are two plans: those whose measured steps differ by more
than a quarter must be predicted in that order.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import statistics
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

import weft
from tests.shard.corpus import PROGRAMS, annotated, cases
from weft.cli.script import load_script
from weft.columns import Column, table_text
from weft.ir.types import TensorType
from weft.machine import machine, seconds_text
from weft.records import dataclass
from weft.run.execute import place_as_results

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
SCRIPTS = ("llama.py:loss", "llama.py:train_step")
NEAR, APART = 1.2, 1.25
LEAST_STEPS, SECONDS = 20, 0.25


@dataclass(frozen=True, slots=True)
class Row:
    """A program with one of its plans: predicted and measured seconds of a step."""

    program: str
    plan: str
    predicted: float
    measured: float

    @property
    def ratio(self) -> float:
        """Predicted by measured."""
        return self.predicted / self.measured


def drawn(types: Any) -> list[Any]:
    """Random arguments; integers are small, as they may be indices or trip counts."""
    numbers = np.random.default_rng(0)
    return [
        (0.1 * numbers.standard_normal(t.sizes)).astype(t.dtype.numpy)
        if t.dtype.is_float
        else numbers.integers(0, 4, t.sizes).astype(t.dtype.numpy)
        for t in types
        if isinstance(t, TensorType)
    ]


def measured(compiled: weft.Compiled, arrays: list[Any]) -> float:
    """The seconds of the fastest of many steps."""
    given = place_as_results(compiled.program.local, arrays)
    least, begun = float("inf"), time.perf_counter()
    for step in itertools.count():
        start = time.perf_counter()
        for result in compiled.flat(given):
            result.wait()
        least = min(least, time.perf_counter() - start)
        if step >= LEAST_STEPS and time.perf_counter() - begun > SECONDS:
            return least
    raise AssertionError("it counts without end")


def programs(names: list[str], meshes: list[str]) -> Iterator[tuple[str, str, Any, list[Any]]]:
    """Name, plan, compiled program and global arguments."""
    for name, mesh, annotation in cases(PROGRAMS):
        if mesh in meshes and (not names or name in names):
            compiled = weft.compile(annotated(name, mesh, annotation))
            types = compiled.program.stage("captured").function("main").arg_types
            yield f"{name} {mesh}", annotation, compiled, drawn(types)
    for name in SCRIPTS:
        if not names or name in names:
            script = load_script(str(EXAMPLES / name))
            inputs, shardings = script.inputs(), script.beside("shardings")
            compiled = weft.compile(
                script.function, *inputs, mesh="data=2,model=4", in_shardings=shardings
            )
            yield name, "", compiled, [np.asarray(x) for x in compiled.leaves(*inputs)]


def wrong_orders(rows: list[Row]) -> Iterator[tuple[Row, Row]]:
    """Pairs of plans of one program, the faster first, that are predicted the other way."""
    for one, two in itertools.permutations(rows, 2):
        differ = one.program == two.program and one.measured * APART < two.measured
        if differ and one.predicted > two.predicted:
            yield one, two


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*")
    parser.add_argument("--meshes", nargs="*", default=["2x4"])
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    on, rows = machine("host"), []
    if not on.overheads:
        print("this computer is not calibrated: run `weft calibrate` first")
    for name, plan, compiled, arrays in programs(given.names, given.meshes):
        predicted = compiled.predict("host", level=1).seconds
        rows.append(Row(name, plan, predicted, measured(compiled, arrays)))
    columns = [Column("program"), Column("plan")]
    columns += [Column(head, right=True) for head in ("predicted", "measured", "")]
    cells = [
        (r.program, r.plan, seconds_text(r.predicted), seconds_text(r.measured), f"{r.ratio:.2f}")
        for r in rows
    ]
    print(table_text(columns, cells))
    if not rows:
        return
    near = sum(1 / NEAR <= row.ratio <= NEAR for row in rows)
    mean = math.exp(statistics.mean(math.log(row.ratio) for row in rows))
    wrong = [*wrong_orders(rows)]
    print(f"{near} of {len(rows)} within 20%; geometric mean {mean:.2f}")
    print(f"{len(wrong)} pairs of plans that differ by more than 25% in the wrong order")
    for one, two in wrong:
        print(f"  {one.program}: {one.plan} is faster than {two.plan}")
    if given.json:
        found = [{"program": r.program, "plan": r.plan, "predicted": r.predicted} for r in rows]
        both = zip(found, rows, strict=True)
        given.json.write_text(json.dumps([d | {"measured": r.measured} for d, r in both], indent=1))


if __name__ == "__main__":
    main()
