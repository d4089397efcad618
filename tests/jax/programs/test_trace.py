"""WEFT_TRACE in a JAX program: a folder for each function that is compiled."""

from __future__ import annotations

import math
from pathlib import Path

from tests.jax.door import run_on_weft, start

_SOURCE = """
import jax, jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

mesh = jax.make_mesh((8,), ("i",), axis_types=(AxisType.Auto,))
x = jax.device_put(jnp.arange(16.0), NamedSharding(mesh, P("i")))

@jax.jit
def step(a):
    return jnp.sin(a).sum()

print(round(float(step(x)), 3))
"""
RESULT = f"{sum(map(math.sin, range(16))):.3f}\n"


def test_each_function_has_a_folder(tmp_path: Path) -> None:
    assert run_on_weft(_SOURCE, WEFT_TRACE=str(tmp_path)) == RESULT
    folders = sorted(tmp_path.iterdir())
    assert [int(f.name.partition("-")[0]) for f in folders] == [*range(1, len(folders) + 1)]
    (step,) = [f for f in folders if f.name.endswith("-jit_step")]
    assert {"01-captured.mlir", "02-sharded.mlir", "03-partitioned.mlir"} <= {
        f.name for f in step.iterdir()
    }
    assert [*(step / "kernels").glob("*.ll")]
    summary = (step / "summary.txt").read_text()
    assert summary.startswith("jit_step on 8 devices\n")
    for stage in ("read", "sharded", "partitioned", "optimized", "tiled", "emitted"):
        assert f"\n  {stage} " in summary
    assert "all_reduce  i" in summary


def test_a_folder_that_cannot_be_written_to(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    place = str(tmp_path / "file" / "inside")
    done = start(_SOURCE, "weft", devices=8, timeout=300, WEFT_TRACE=place)
    assert (done.returncode, done.stdout) == (0, RESULT), done.stderr
    assert done.stderr.count("cannot be written to (Not a directory)") == 1
