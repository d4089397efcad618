"""Memory stays what it is, however often something is done."""

from __future__ import annotations

import pytest

from tests.jax.door import run_on_weft

SCRIPT = """
import ctypes, gc
import numpy as np
import jax, jax.numpy as jnp
from weft.jax.native.handles import IMMORTAL
from weft.jax.plugin import the_plugin

x, m = jnp.ones(8), jnp.ones((64, 64))
host, large = np.ones(8, np.float32), np.ones(1 << 18, np.float32)
split = jax.NamedSharding(jax.make_mesh((8,), ("d",)), jax.P("d"))
f = jax.jit(lambda v: v + 1)
product = jax.jit(lambda v: (v @ v).sum())
give = jax.jit(lambda v: v * 2, donate_argnums=0)
def fail(v):
    raise ValueError("no")
wrong = jax.jit(lambda v: jax.pure_callback(fail, v, v))
right = jax.jit(lambda v: jax.pure_callback(lambda w: w, v, v))
handles = the_plugin().handles
made = []
trim = getattr(ctypes.CDLL(None), "malloc_trim", int)

def error():
    try:
        wrong(x).block_until_ready()
    except jax.errors.JaxRuntimeError:
        pass
def refused():
    try:
        jnp.zeros(1 << 50).block_until_ready()
    except Exception:
        pass
def compile():
    made.append(0)
    k = len(made)
    jax.jit(lambda v: v * k + 1)(x)
    if k % 50 == 0:
        jax.clear_caches()

def constants():
    made.append(0)
    table = np.arange(len(made), len(made) + (1 << 18), dtype=np.float32)
    jax.jit(lambda v: v.sum() + table)(x)
    if len(made) % 10 == 0:
        jax.clear_caches()

ACTS = {{
    "calls": (lambda: f(x), 100_000),
    "calls with a wait": (lambda: product(m), 20_000),
    "calls on 8 devices": (lambda: f(jax.device_put(host, split)), 5_000),
    "donations": (lambda: give(give(jax.device_put(host))), 20_000),
    "put and get": (lambda: np.asarray(jax.device_put(host)), 100_000),
    "put and get much": (lambda: np.asarray(jax.device_put(large)), 5_000),
    "deletions": (lambda: jax.device_put(host).delete(), 20_000),
    "errors": (error, 10_000),
    "refusals": (refused, 2_000),
    "callbacks": (lambda: right(x).block_until_ready(), 10_000),
    "compiles": (compile, 10_000),
    "compiles with constants": (constants, 500),
}}

def held():
    gc.collect()
    handles.drain()
    trim(0)  # what is free goes back to the system
    pages = int(open("/proc/self/statm").read().split()[1])
    return pages * 4096 / 1e6, len(handles.objects), len(IMMORTAL)

for name, (act, times) in ACTS.items():
    times = max(40, int(times * {share}))
    for _ in range(max(30, times // 10)):
        act()
    jax.clear_caches()
    act()
    before = held()
    for _ in range(times):
        act()
    jax.clear_caches()
    act()
    after = held()
    print(name, times, before, after, flush=True)
    assert after[0] - before[0] < {room}, (name, before, after)
    assert after[1] - before[1] < 40 and after[2] - before[2] < 5, (name, before, after)
"""


def test_memory_stays() -> None:
    run_on_weft(SCRIPT.format(share=0.003, room=8))


@pytest.mark.long
def test_memory_stays_for_long() -> None:
    run_on_weft(SCRIPT.format(share=1, room=32), timeout=7200)
