"""Compiled programs as bytes: stored, damaged, refused, and in JAX's own cache."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.jax.door import run_on_weft

_SOURCE = """
import warnings
import jax, jax.numpy as jnp, numpy as np
from jax.experimental.serialize_executable import deserialize_and_load, serialize
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

warnings.simplefilter("error")
x = jnp.arange(8.0)
mesh = jax.make_mesh((4, 2), ("a", "b"), axis_types=(AxisType.Auto,) * 2)
m = jax.device_put(jnp.arange(64.0).reshape(8, 8), NamedSharding(mesh, P("a", "b")))

def check(f, *args, devices=None, **options):
    compiled = jax.jit(f, **options).lower(*args).compile()
    copies = [jax.tree.map(lambda a: a + 0, args) for _ in range(2)]
    expected = compiled(*copies[0])
    loaded = deserialize_and_load(*serialize(compiled), execution_devices=devices)
    got = loaded(*copies[1])
    jax.tree.map(np.testing.assert_array_equal, got, expected)
    assert jax.tree.map(lambda a: a.sharding, got) == jax.tree.map(lambda a: a.sharding, expected)
    assert loaded.cost_analysis() == compiled.cost_analysis()
    assert loaded.as_text() == compiled.as_text()
    return loaded

one = jax.devices()[:1]
check(lambda a: jnp.sin(a) @ a, x, devices=one)
check(lambda a: (a @ a.T, {"sum": a.sum(0), "turned": a[::-1]}), m)
check(lambda a: jax.lax.scan(lambda c, r: (c + r, jnp.sort(r)), jnp.zeros(8), a), m)
check(lambda a: jnp.linalg.qr(a), m)
check(lambda a: a * 2, m, donate_argnums=0)
check(lambda k: jax.random.normal(k, (8, 8)), jax.random.PRNGKey(0), devices=one)
turn = lambda a: jax.lax.ppermute(a, "a", [(n, (n + 1) % 4) for n in range(4)])
check(jax.shard_map(turn, mesh=mesh, in_specs=P("a"), out_specs=P("a")), m)

def refused(call):
    try:
        call()
    except jax.errors.JaxRuntimeError as error:
        return str(error)
    raise AssertionError("it was taken")

calling = jax.jit(lambda a: jax.pure_callback(np.asarray, a, a)).lower(x).compile()
text = refused(lambda: serialize(calling))
assert "calls Python functions of this process, so it cannot be stored" in text, text

from weft.errors import WeftError
from weft.jax.programs import serialized
from weft.jax.programs.executables import Described
from weft.jax.plugin import the_plugin

kept = the_plugin().handles.objects.values()
described = next(t for t in kept if isinstance(getattr(t, "described", None), Described)).described
data = serialized.serialized(described.executable)
again = serialized.restored(data, None)
assert again.local.arg_types == described.executable.local.arg_types
assert again.fingerprint == described.executable.fingerprint
for wrong, what in (
    (b"something else", "these bytes are not a program serialized by Weft"),
    (data[:-1], "a stored program is corrupt"),
    (data[:100] + b"?" + data[101:], "a stored program is corrupt"),
    (b"", "these bytes are not a program"),
):
    try:
        serialized.restored(wrong, None)
    except WeftError as error:
        assert what in error.message, error
    else:
        raise AssertionError("damaged bytes were taken")
serialized.makers = lambda: {"weft": "0.0.0", "jaxlib": "0.10.2"}
older = serialized.serialized(described.executable)
serialized.makers = lambda: {"weft": "9.9.9", "jaxlib": "0.10.2"}
try:
    serialized.restored(older, None)
except WeftError as error:
    assert "was made by weft 0.0.0 and jaxlib" in error.message, error
else:
    raise AssertionError("another version was taken")
print("done")
"""


def test_stored_and_loaded() -> None:
    assert run_on_weft(_SOURCE) == "done\n"


_CACHED = """
import warnings
import jax, jax.numpy as jnp, numpy as np
from jax._src import monitoring
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

warnings.simplefilter("error")
events = []
monitoring.register_event_listener(lambda event, **_: events.append(event.rpartition("/")[2]))
mesh = jax.make_mesh((8,), ("i",), axis_types=(AxisType.Auto,))
x = jax.device_put(np.arange(8.0, dtype=np.float32), NamedSharding(mesh, P("i")))

@jax.jit
def step(a):
    return jnp.cos(a) * a.sum()

@jax.jit
def seen(a):
    jax.debug.inspect_array_sharding(a, callback=lambda s: print(s.spec))
    return a

print(step(x).round(4).tolist())
print(events.count("cache_hits"), events.count("cache_misses"))
seen(x)
"""


def test_cache_of_jax(tmp_path: Path) -> None:
    def run(**env: str) -> list[str]:
        return run_on_weft(
            _CACHED,
            **env,
            JAX_COMPILATION_CACHE_DIR=str(tmp_path),
            JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS="0",
            JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES="-1",
        ).splitlines()

    first, again = run(), run(WEFT_TRACE=str(tmp_path / "trace"))
    assert first[0] == again[0]
    hits, misses = map(int, first[1].split())
    assert hits == 0 < misses, "nothing is there to begin with"
    assert again[1] == f"{misses} 0", "all comes from the cache"
    (traced,) = (tmp_path / "trace").glob("*-jit_step")
    assert {"01-optimized.mlir", "02-tiled.txt"} <= {f.name for f in traced.iterdir()}
    assert [*(traced / "kernels").iterdir()]
    assert "launches of" in (traced / "summary.txt").read_text(), "also one that was stored"
    assert first[2] == again[2] == "P('i',)", "every process is told, so it compiles"


_CALLING = """
import os, warnings
import jax, jax.numpy as jnp, numpy as np
from jax._src import monitoring
from jax.experimental import io_callback
from jax.sharding import NamedSharding, PartitionSpec as P

warnings.simplefilter("error")
events = []
monitoring.register_event_listener(lambda event, **_: events.append(event.rpartition("/")[2]))
mesh = jax.make_mesh((8,), ("i",))
x = jax.device_put(np.arange(8, dtype=np.int32), NamedSharding(mesh, P("i")))
scale = int(os.environ["SCALE"])
for _ in range(scale):  # so that numbers of functions differ between the processes
    jax.jit(lambda a: jax.pure_callback(np.negative, a, a)).lower(x)

@jax.jit
def two(a):
    b = jax.pure_callback(lambda v: np.asarray(v) * scale, a, a)
    add = lambda n, s: io_callback(lambda v: np.asarray(v) + scale, s, s, ordered=True)
    return jax.lax.fori_loop(0, 3, add, b) + a

@jax.jit
def each(a):
    call = lambda v: jax.pure_callback(lambda w: np.asarray(w) - scale, v, v)
    jax.debug.callback(lambda v: print("told", scale), a)
    return jax.shard_map(call, mesh=mesh, in_specs=P("i"), out_specs=P("i"))(a)

results = f"{two(np.arange(4, dtype=np.int32))} {each(x)}"
jax.effects_barrier()  # what the callback prints comes first
print(results)
jax.effects_barrier()
print(events.count("cache_hits"), jax.__version__.startswith("0.10."))
"""


def test_python_functions_of_programs_in_the_cache_of_jax(tmp_path: Path) -> None:
    for scale, found in ((2, 0), (5, 2), (2, 2)):
        told, results, hits = run_on_weft(
            _CALLING,
            SCALE=str(scale),
            JAX_COMPILATION_CACHE_DIR=str(tmp_path),
            JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS="0",
            JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES="-1",
        ).splitlines()
        n = np.arange(8)
        expected = f"{scale * (n[:4] + 3) + n[:4]} {n - scale}"
        assert (told, results) == (f"told {scale}", expected), "its own functions"
        assert hits in (f"{found} False", "0 True"), "JAX 0.10 stores no such programs"


_IN_MEMORY = """
import jax, numpy as np
from jax._src import compilation_cache, config, monitoring
from jax._src.compilation_cache_interface import CacheInterface

class Memory(CacheInterface, dict):
    _path = None
    put = dict.__setitem__
    get = dict.get

events = []
monitoring.register_event_listener(lambda event, **_: events.append(event.rpartition("/")[2]))
compilation_cache._cache = Memory()  # no folder: a cache that a program has put there
config.update("jax_persistent_cache_min_compile_time_secs", 0)
config.update("jax_persistent_cache_min_entry_size_bytes", 0)
x = np.arange(8.0, dtype=np.float32)
for _ in range(2):
    jax.block_until_ready(jax.jit(lambda a: a + 1)(x))
    jax.clear_caches()
assert len(compilation_cache._cache) == 1
assert events.count("tasks_using_cache") == 1, events
assert (events.count("cache_misses"), events.count("cache_hits")) == (1, 1), events
compilation_cache.reset_cache()
with config.enable_compilation_cache(False):
    jax.jit(lambda a: a + 2)(x)
    jax.jit(lambda a: a + 3)(x)
assert events.count("task_disabled_cache") == 1, events
print("done")
"""


def test_cache_of_jax_without_a_folder() -> None:
    assert run_on_weft(_IN_MEMORY) == "done\n"
