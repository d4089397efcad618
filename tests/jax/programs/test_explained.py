"""What is told while JAX's programs are compiled: who sends what, and because of which line."""

from __future__ import annotations

from tests.jax.door import start

_SOURCE = """
import jax, jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec as P

mesh = jax.make_mesh((4, 2), ("a", "b"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
put = lambda value, *spec: jax.device_put(value, NamedSharding(mesh, P(*spec)))
w = put(jnp.ones((64, 64)), "b", None)

@jax.jit
def step(x):
    h = x @ w
    return (h * h).sum()

step(put(jnp.ones((64, 64)), "a", "b"))
step(put(jnp.ones((64, 64)), "a", "b"))
jax.jit(lambda a: a + 1)(put(jnp.ones(8), "a"))
jax.jit(lambda a: a + 2)(jnp.ones(8))
asked = {"weft_explain": True}
jax.jit(lambda a: a + 3, compiler_options=asked)(put(jnp.ones(8), "a"))
jax.jit(lambda a: a + 4, compiler_options=asked)(jnp.ones(8))
"""


def test_explain() -> None:
    done = start(_SOURCE, "weft", devices=8, timeout=100, WEFT_EXPLAIN="1")
    assert done.returncode == 0, done.stderr
    told = done.stderr.split("weft: ")[1:]
    (step,) = [text for text in told if text.startswith("jit_step")]
    first, headline, _, heads, *rows = step.strip().splitlines()
    assert first == "jit_step on 8 devices: each sends 4.01 KiB"
    assert headline.startswith("jit_step on host (")
    assert heads.split() == "collective over sent times each exposed line and reason".split()
    assert rows[0].startswith("all_reduce  b     4 KiB      1") and "<string>:12: " in rows[0]
    assert "partial" in rows[0] and "advice" in step
    nothing = [text for text in told if text.startswith("jit__lambda")]
    assert nothing == ["jit__lambda on 8 devices sends nothing\n"]  # of the one that was to tell
    assert "on 1 devices" not in done.stderr


def test_silent_unless_asked() -> None:
    done = start(_SOURCE, "weft", devices=8, timeout=100)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("weft: ") == 1  # of the one that was to tell


def test_wrong_knob() -> None:
    done = start(_SOURCE, "weft", devices=8, timeout=100, WEFT_EXPLAIN="loud")
    assert done.returncode != 0
    assert "WEFT_EXPLAIN='loud' is invalid" in done.stderr
