"""Predicted steps beside measured ones on this computer: `python benchmarks/predict.py [NAME ...]`.

Programs run in lockstep on 8 virtual devices. Run `weft calibrate` first. Measured is the least of
many steps, in wall-clock time.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np

import weft
from weft.cli.script import load_script
from weft.columns import Column, table_text
from weft.machine import seconds_text

ROOT = Path(__file__).resolve().parents[1] / "examples"
MESH = "data=2,model=4"
PROGRAMS = ("llama.py:loss", "llama.py:train_step")
REPEATS, SECONDS = 200, 2.0


def measured(compiled: weft.Compiled, inputs: tuple[object, ...]) -> float:
    """The seconds of the fastest of many steps."""
    least, begun = float("inf"), time.perf_counter()
    for _ in range(REPEATS):
        start = time.perf_counter()
        for result in compiled.flat(compiled.leaves(*inputs)):
            np.asarray(result)
        least = min(least, time.perf_counter() - start)
        if time.perf_counter() - begun > SECONDS:
            break
    return least


def main(names: list[str]) -> None:
    """Print a table of programs."""
    rows, ratios = [], []
    for name in names or PROGRAMS:
        script = load_script(str(ROOT / name))
        inputs = script.inputs()
        shardings = script.beside("shardings")
        compiled = weft.compile(script.function, *inputs, mesh=MESH, in_shardings=shardings)
        predicted = compiled.predict("host", level=1).seconds
        actual = measured(compiled, inputs)
        ratios.append(predicted / actual)
        cells = (seconds_text(predicted), seconds_text(actual), f"{predicted / actual:.2f}")
        rows.append((name, *cells))
    columns = [Column("program"), *[Column(h, right=True) for h in ("predicted", "measured", "")]]
    print(table_text(columns, rows))
    if ratios:
        near = sum(1 / 1.2 <= ratio <= 1.2 for ratio in ratios)
        print(f"{near} of {len(ratios)} within 20%")


if __name__ == "__main__":
    main(sys.argv[1:])
