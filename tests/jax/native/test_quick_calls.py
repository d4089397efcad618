"""Small programs on small arrays, which native code calls without Python."""

from __future__ import annotations

from tests.jax.door import run_on_weft

START = """
import gc, threading
import numpy as np, jax, jax.numpy as jnp
from weft.jax.programs import executing
from weft.jax.plugin import the_plugin

handles = the_plugin().handles
asked = []
ask = executing._arguments
def counted(*given):
    asked.append(1)
    return ask(*given)
executing._arguments = counted

def python_was_asked(function, *given):
    del asked[:]
    made = function(*given)
    return made, bool(asked)

def warm(function, *given):
    for _ in range(3):
        jax.block_until_ready(function(*given))
"""

CALLS = """
f = jax.jit(lambda x, y: (x + y, x.sum()))
x, y = (jax.device_put(np.full((3, 5), n, np.float32)) for n in (2, 3))
warm(f, x, y)
(added, total), slow = python_was_asked(f, x, y)
assert not slow
assert np.array_equal(added, np.full((3, 5), 5)) and total == 30

# Larger arrays, whose arrival Python saw.
for size in (1 << 12, 1 << 15):
    large = jax.device_put(np.arange(size, dtype=np.float32))
    doubled = jax.jit(lambda v: v * 2)
    warm(doubled, large)
    made, slow = python_was_asked(doubled, large)
    assert not slow and np.array_equal(made, 2 * np.arange(size, dtype=np.float32))
    chained, slow = python_was_asked(doubled, made)
    assert not slow and np.array_equal(chained, 4 * np.arange(size, dtype=np.float32))
    large.delete()
    try:
        doubled(large)
    except (RuntimeError, ValueError) as error:
        assert "deleted" in str(error), error
    else:
        raise AssertionError("a deleted array was read")

# What native code made is Python's when it is asked for it, and native code reads it all the same.
moved = jax.device_put(added, jax.devices()[1])
assert np.array_equal(moved, added)
(again, _), slow = python_was_asked(f, added, y)
assert not slow and np.array_equal(again, np.full((3, 5), 8))
(other, _), slow = python_was_asked(f, moved, jax.device_put(y, jax.devices()[1]))
assert np.array_equal(other, np.full((3, 5), 8))

# Every type, also of no elements and of one.
for dtype in ("bool", "int8", "uint16", "int64", "float16", "bfloat16", "float64", "complex64"):
    for shape in ((), (0, 3), (1,), (4, 1, 2)):
        given = np.ones(shape).astype(jnp.dtype(dtype))
        g = jax.jit(lambda v: (v, jnp.logical_not(v), v[None]))
        z = jax.device_put(given)
        warm(g, z)
        same, turned, more = g(z)
        assert same.dtype == z.dtype and np.array_equal(same, z) and more.shape == (1, *shape)
        assert np.array_equal(turned, np.logical_not(np.asarray(z)))

# Strided, empty, deep and read-only arrays of the host.
base = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
for given in (base.T, base[:, ::2], base[::-1], base[:, :0], base[1, 1, 1], base[None, ..., None]):
    assert np.array_equal(jax.device_put(given), given)
    assert np.array_equal(jax.device_put(given), given)
deep = base.reshape((1,) * 9 + base.shape)
assert np.array_equal(jax.device_put(deep), deep)
base.flags.writeable = False
assert np.array_equal(jax.device_put(base), base)
changed = np.zeros(4, np.float32)
held = jax.device_put(changed)
changed[:] = 7
assert np.array_equal(held, np.zeros(4))  # it was copied

# Results that are arguments, constants and other results, also without any kernel.
def mixed(x, y):
    z = x + 1
    return z, y, x, z, np.arange(4), np.zeros((0, 3), np.int8), z * 2, y

functions = (
    mixed,
    lambda x, y: (y, x),
    lambda x, y: (y, np.ones(2), x.reshape(-1)),
    lambda x, y: (x + 1, y),
)
for function in functions:
    for donated in ((), (0,), (1,), (0, 1)):
        call = jax.jit(function, donate_argnums=donated)
        for n in range(6):
            given = np.full((3, 5), n), np.full(7, -n)
            made, slow = python_was_asked(call, *map(jax.device_put, given))
            assert n < 3 or not slow
            assert jax.tree.all(jax.tree.map(np.array_equal, made, function(*given)))
state = x + 0, y
step = jax.jit(lambda x, y: (x * 2, y), donate_argnums=(0, 1))
for _ in range(6):
    state, slow = python_was_asked(step, *state)
assert not slow and np.array_equal(state[0], np.full((3, 5), 128)), state
assert np.array_equal(state[1], np.full((3, 5), 3))
y = jax.device_put(np.full((3, 5), 3, np.float32))

# Arrays without elements, strided ones, and results that are only looked at in another way.
empty, strided = np.zeros((0, 3)), np.arange(12.0).reshape(3, 4).T
for given in (empty, strided, strided[::2], np.zeros((1,) * 9)):
    h = jax.jit(lambda v: (v * 2, v.reshape(-1)))
    z = jax.device_put(given)
    warm(h, z)
    (twice, flat), slow = python_was_asked(h, z)
    assert not slow and np.array_equal(twice, given * 2) and np.array_equal(flat, given.reshape(-1))
row = jax.device_put(np.arange(12.0).reshape(3, 4))[1]
h = jax.jit(lambda v: v + 1)
warm(h, row)
made, slow = python_was_asked(h, row)
assert not slow and np.array_equal(made, np.arange(5.0, 9.0))

# A deleted argument, and another number of arguments in between.
gone = f(x, y)[0]
gone.delete()
try:
    f(gone, y)
except (RuntimeError, ValueError) as error:
    assert "deleted" in str(error), error
else:
    raise AssertionError("a deleted array was read")
(added, total), slow = python_was_asked(f, x, y)
assert not slow and total == 30

# Nothing stays behind.
count = len(handles.objects)
for _ in range(2000):
    f(x, y)
    np.asarray(jax.device_put(np.ones(3, np.float32)))
gc.collect()
handles.drain()
assert len(handles.objects) <= count + 8, (count, len(handles.objects))
print("fine")
"""

DONATED = """
f = jax.jit(lambda x: x * 2, donate_argnums=0)
g = jax.jit(lambda x: x + 1)
x = jax.device_put(np.ones(64, np.float32))
warm(g, x)
y = g(x)
for _ in range(3):
    y = f(y)
where = y.unsafe_buffer_pointer()  # from now on somebody may read it there
seen = np.asarray(y)
before = seen.copy()
z, slow = python_was_asked(f, y)
assert not slow and y.is_deleted()
assert np.array_equal(seen, before) and np.array_equal(z, before * 2)
assert z.unsafe_buffer_pointer() != where
del seen
w = g(z)
del z
v, slow = python_was_asked(f, w)
assert not slow and np.array_equal(v, (before * 2 + 1) * 2)

# One that is passed twice, and one that Python holds.
both = jax.jit(lambda a, b: a + b, donate_argnums=0)
a, b = g(x), g(x)
warm(lambda: both(g(x), b))
try:
    both(b, b)
except Exception as error:
    assert "donate" in str(error), error
else:
    raise AssertionError("donated and read")
assert np.array_equal(both(a, b), np.full(64, 4))
held = jax.device_put(np.ones(64, np.float32))
copy = jax.device_put(held, jax.devices()[1])  # Python knows it now, and shares it
u = f(held)
assert np.array_equal(u, np.full(64, 2)) and np.array_equal(copy, np.ones(64))
late = np.asarray(copy)
assert np.array_equal(late, np.ones(64))

# A result that only looks at its argument in another way stays when that is donated.
for size in (64, 1 << 16):
    many = jax.device_put(np.arange(size, dtype=np.float32))
    for look in (
        lambda x: x,
        lambda x: x.reshape(8, -1),
        lambda x: jax.lax.bitcast_convert_type(x, np.int32),
        lambda x: (x.reshape(-1, 2), x + 1),
    ):
        look = jax.jit(look)
        want = jax.tree.map(np.array, look(g(many)))
        s = g(many)
        seen = look(s)
        assert np.array_equal(f(s), (np.arange(size) + 1) * 2)
        assert jax.tree.all(jax.tree.map(np.array_equal, seen, want)), size

# Large programs take what small ones made, and the other way round.
large = jax.jit(lambda x: jnp.tile(x, (1 << 12, 1)), donate_argnums=0)
total = jax.jit(lambda x: x.sum())
for n in range(5):
    s = g(jax.device_put(np.full(64, n, np.float32)))
    wide = large(s)
    assert total(wide[7]) == 64 * (n + 1), n
print("fine")
"""

SEVERAL_DEVICES = """
mesh = jax.make_mesh((8,), ("d",))
split, whole = jax.NamedSharding(mesh, jax.P("d")), jax.NamedSharding(mesh, jax.P())
x = jax.device_put(np.arange(16, dtype=np.float32), split)
f = jax.jit(lambda x: x + 1)
y = f(f(f(x)))
for n in range(6):
    y, slow = python_was_asked(f, y)
assert not slow
assert np.array_equal(y, np.arange(16) + 9)
for shard in y.addressable_shards:
    assert np.array_equal(shard.data, np.arange(16)[shard.index] + 9)
pieces = [f(s.data) for s in y.addressable_shards]
again = jax.make_array_from_single_device_arrays((16,), split, pieces)
assert np.array_equal(f(again), np.arange(16) + 11)
views = [np.asarray(p) for p in pieces]
assert np.array_equal(np.concatenate(views), np.arange(16) + 10)
copies = jax.jit(lambda x: x * 2, out_shardings=whole)(y)
assert all(np.array_equal(s.data, np.arange(16) * 2 + 18) for s in copies.addressable_shards)
g = jax.jit(lambda x: x * 2, donate_argnums=0)
for n in range(5):
    y = g(y)
assert np.array_equal(y, (np.arange(16) + 9) * 32)

# Threads at the same time, with donation and with eyes on what is donated.
def work(k):
    z = jax.device_put(np.full(32, k, np.float32))
    for n in range(300):
        seen = np.asarray(z)
        was = seen[0]
        z = g(f(z)) if n % 2 else f(z)
        assert seen[0] == was and seen[-1] == was
        z = z - (np.asarray(z)[0] - k)
    assert np.array_equal(z, np.full(32, k))
    done.append(k)
done = []
threads = [threading.Thread(target=work, args=(k,)) for k in range(6)]
for t in threads: t.start()
for t in threads: t.join()
assert sorted(done) == [0, 1, 2, 3, 4, 5]
print("fine")
"""

THREADS = """
import sys
f = jax.jit(lambda x: x + 1)
g = jax.jit(lambda x: x * 2, donate_argnums=0)
x = jax.device_put(np.ones(64, np.float32))
warm(f, x)
warm(lambda: g(f(x)))

# Results that are kept take new records, which are there before native code needs them.
kept, slow = zip(*[python_was_asked(f, x) for _ in range(500)])
assert sum(slow) < 50, sum(slow)

# Threads ask Python for the same array at once, and one of them donates it.
def meet(k):
    for n in range(200):
        if k == 0:
            met[0] = f(x)
        together.wait()
        try:
            if k == 3 and n % 2:
                g(met[0])
            else:
                moved = jax.device_put(met[0], jax.devices()[k + 1])
                assert np.array_equal(moved, np.full(64, 2))
        except Exception as error:
            if not n % 2 or "deleted" not in str(error):
                wrong.append(error)
        together.wait()
met, wrong, together = [None], [], threading.Barrier(4)
sys.setswitchinterval(1e-6)
threads = [threading.Thread(target=meet, args=(k,)) for k in range(4)]
for t in threads: t.start()
for t in threads: t.join()
assert not wrong, wrong

# A program that computes for long on little memory lets other threads run.
pairs = jax.jit(lambda x: jnp.sin(x[:, None] * x[None]).sum(0))
many = jax.device_put(np.ones(4000, np.float32))
warm(pairs, many)
_, slow = python_was_asked(pairs, many)
assert slow
print("fine")
"""


def test_calls_and_arrays() -> None:
    run_on_weft("import jax; jax.config.update('jax_enable_x64', True)\n" + START + CALLS)


def test_donation() -> None:
    run_on_weft(START + DONATED)


def test_several_devices_and_threads() -> None:
    run_on_weft(START + SEVERAL_DEVICES)


def test_threads_that_meet() -> None:
    run_on_weft(START + THREADS)
