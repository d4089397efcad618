"""JAX's profiler on Weft's devices: it works, and shows what Weft compiles and runs."""

from __future__ import annotations

from pathlib import Path

from tests.jax.door import run_on_weft

_SOURCE = """
import glob, gzip, json, os, tempfile
import jax, jax.numpy as jnp

a = jnp.ones((256, 256))
folder = os.environ["TO"]
with jax.profiler.trace(folder):
    with jax.profiler.TraceAnnotation("mine"):
        step = jax.jit(lambda a: jax.lax.fori_loop(0, 5, lambda i, c: jnp.sin(c @ a), a))
        step(a).block_until_ready()
(file,) = glob.glob(folder + "/**/*.trace.json.gz", recursive=True)
names = {event.get("name") for event in json.load(gzip.open(file))["traceEvents"]}
assert {"mine", "weft compile jit__lambda", "weft run jit__lambda"} <= names, names

with tempfile.TemporaryDirectory() as other:
    jax.profiler.start_trace(other)
    step(a).block_until_ready()
    jax.profiler.stop_trace()
    assert glob.glob(other + "/**/*.xplane.pb", recursive=True)
assert jax.profiler.device_memory_profile()
print("done")
"""


def test_profile(tmp_path: Path) -> None:
    assert run_on_weft(_SOURCE, TO=str(tmp_path)) == "done\n"
