"""How long a saved program takes to its first result, in a process that begins with nothing.

    python benchmarks/load.py [--rounds 10] [--python PYTHON]

Two programs are saved here: the training step of examples/llama.py on data=2, model=4, and a small
product. Each is loaded and called once in new processes of PYTHON, which needs numpy and llvmlite,
but no JAX: `cold` with an empty cache, `warm` with what that has left, and `trusted` with
an empty cache and the machine code in the file. Results are compared bit by bit with those of the
process that has saved the program. A row has milliseconds of every part, of the fastest round and
(in brackets) of the median one: processor time, of imports that of their thread alone, since numpy
starts another one, in OpenBLAS, that spins for 50 ms and that nothing waits for. `whole` is their
sum, and `clock` what a clock shows from before the start of Python to the first result.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import jax
import numpy as np

import weft
from examples import llama

ROOT = Path(__file__).resolve().parents[1]
PARTS = ("python", "numpy", "weft", "load", "call", "whole", "clock")
CHILD = """
from time import process_time, thread_time as now, time
spent = [now()]
begin = now(); import numpy as np; spent.append(now() - begin)
begin = now(); import weft; weft.load; spent.append(now() - begin)
import json, sys
path, trust, started = sys.argv[1], sys.argv[2] == "trusted", float(sys.argv[3])
begin = process_time(); program = weft.load(path, trust=trust)
spent.append(process_time() - begin)
clock = time() - started
given, expected = ([*np.load(f"{path}.{end}.npz").values()] for end in ("in", "out"))
args, kwargs = program.signature.takes.unflatten(given)
begin, called = process_time(), time()
made = program.signature.gives.flatten(program(*args, **kwargs))
made = [np.asarray(leaf) for leaf in made]
spent.append(process_time() - begin)
clock += time() - called
for one, other in zip(made, expected, strict=True):
    np.testing.assert_array_equal(one, other)
assert "jax" not in sys.modules
print(json.dumps([*spent, sum(spent), clock]))
"""


def saved(folder: Path) -> dict[str, Path]:
    """The programs in files, with what they are given and what they have to give."""
    weights, tokens = llama.inputs()
    options = {"in_shardings": llama.shardings, "out_shardings": (llama.WEIGHTS, weft.P())}
    mesh = weft.Mesh(data=2, model=4)
    step = weft.compile(llama.train_step, weights, tokens, mesh=mesh, donate_argnums=0, **options)
    x, w = np.ones((4, 16), np.float32), np.ones((16, 8), np.float32)
    options = {"mesh": weft.Mesh(data=2), "in_shardings": (weft.P("data"), weft.P())}
    small = weft.compile(lambda x, w: jax.numpy.tanh(x @ w), x, w, **options)
    paths = {}
    for name, program, given in (("llama", step, (weights, tokens)), ("small", small, (x, w))):
        path = paths[name] = folder / f"{name}.weft"
        program.save(path, code=True)
        leaves = jax.tree.leaves(given)
        np.savez(f"{path}.in.npz", *leaves)
        made = [np.asarray(leaf) for leaf in jax.tree.leaves(program(*given))]
        np.savez(f"{path}.out.npz", *made)
    return paths


def start(python: str, path: Path, how: str, cache: Path) -> list[float]:
    """Milliseconds of each part, of one process."""
    wanted = {"PYTHONPATH": str(ROOT), "WEFT_CACHE": str(cache)}
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    line = [python, "-c", CHILD, str(path), how, str(time.time())]
    done = subprocess.run(line, env=kept | wanted, check=True, capture_output=True, text=True)
    return [1e3 * seconds for seconds in json.loads(done.stdout)]


def rounds(python: str, path: Path, how: str, count: int) -> list[list[float]]:
    """The same of several processes, but the first, which may write Python's own caches."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for n in range(count + 1):
            cache = Path(folder) / ("warm" if how == "warm" else str(n))
            found.append(start(python, path, how, cache))
    return found[1:]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--python", default=sys.executable)
    given = parser.parse_args()
    versions = f"Python {platform.python_version()}, numpy {np.__version__}"
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, {versions}")
    print(f"python benchmarks/load.py --rounds {given.rounds}")
    print(f"{'':16}" + "".join(f"{part:>14}" for part in PARTS))
    with tempfile.TemporaryDirectory() as folder:
        for name, path in saved(Path(folder)).items():
            for how in ("cold", "warm", "trusted"):
                found = rounds(given.python, path, how, given.rounds if how != "cold" else 2)
                columns = [*zip(*found, strict=True)]
                cells = [f"{min(c):6.0f} ({statistics.median(c):4.0f})" for c in columns]
                print(f"{name:6} {how:9}" + "".join(f"{cell:>14}" for cell in cells))


if __name__ == "__main__":
    main()
