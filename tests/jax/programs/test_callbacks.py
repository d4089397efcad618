"""Callbacks: how often they are called, with what, in which order, and what their errors say."""

from __future__ import annotations

from tests.jax.door import run_on_cpu, run_on_weft

_HEAD = """
import io, logging, sys
import jax, jax.numpy as jnp, numpy as np
from jax import lax
from jax.experimental import checkify, io_callback
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

x = jnp.arange(8.0)
F32 = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.float32)
auto = dict(axis_types=(AxisType.Auto,))
mesh = jax.make_mesh((8,), ("i",), **auto)
grid = jax.make_mesh((4, 2), ("a", "b"), axis_types=(AxisType.Auto,) * 2)
xs = jax.device_put(x, NamedSharding(mesh, P("i")))
m = jax.device_put(jnp.arange(16.0).reshape(4, 4), NamedSharding(grid, P("a", "b")))
seen = []

def note(*args):
    seen.append(tuple(np.asarray(a).tolist() for a in args))

def told(what, ordered=False):
    jax.effects_barrier()
    print(what, seen if ordered else sorted(seen, key=str))
    seen.clear()

def failing(call):
    try:
        call()
        jax.effects_barrier()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    raise AssertionError("nothing was raised")
"""

_SEEN = (
    _HEAD
    + """
jax.debug.callback(note, x)
jax.debug.print("eager {} {}", x[0], 3)
told("eager")
jax.jit(lambda a: jax.debug.callback(note, a))(xs)
told("whole")
jax.jit(lambda a: jax.debug.callback(note, a, a.T, partitioned=True))(m)
told("pieces")
jax.jit(lambda a: jax.debug.callback(note, a, partitioned=True))(
    jax.device_put(x, NamedSharding(mesh, P())))
told("the same piece, from each")

def inside(a, b):
    jax.debug.callback(note, a)
    jax.debug.callback(note, b)
    return a
jax.jit(jax.shard_map(inside, mesh=mesh, in_specs=(P("i"), P()), out_specs=P("i")))(xs, 3.0)
told("shard_map")
jax.jit(jax.shard_map(lambda a: inside(a, a)[:1], mesh=grid, in_specs=P("a"), out_specs=P("a"),
                      axis_names={"a"}))(m)
told("partly manual")

def own(a):
    i = lax.axis_index("i")
    lax.cond(i % 2 == 0, lambda: jax.debug.callback(note, 1), lambda: jax.debug.callback(note, i))
    return a
jax.jit(jax.shard_map(own, mesh=mesh, in_specs=P("i"), out_specs=P("i")))(xs)
told("each its own way")

double = lambda a: (note(a), np.asarray(a) * 2)[1]
print(jax.jit(lambda a: jax.pure_callback(double, F32(8), a))(xs))
told("pure")
print(jax.jit(jax.shard_map(lambda a: jax.pure_callback(double, F32(1), a), mesh=mesh,
                            in_specs=P("i"), out_specs=P("i")))(xs))
told("pure, each")
print(jax.pure_callback(double, F32(8), x), jax.pure_callback(lambda a: 2.0, F32(), x))
told("pure, eager")

for method in ("sequential", "sequential_unrolled", "expand_dims", "broadcast_all"):
    def add(a, b):
        seen.append((method, np.shape(a), np.shape(b)))
        return np.asarray(a) + np.asarray(b)
    def added(a, b):
        return jax.pure_callback(add, F32(*jnp.broadcast_shapes(a.shape, b.shape)), a, b,
                                 vmap_method=method)
    print(jax.jit(jax.vmap(added, in_axes=(0, None)))(x[:3], jnp.float32(1)))
    told("vmap", ordered=True)

@jax.custom_vjp
def sine(a):
    return jax.pure_callback(np.sin, F32(8), a)
sine.defvjp(lambda a: (sine(a), a),
            lambda a, g: (jax.pure_callback(lambda v, w: np.cos(v) * w, F32(8), a, g),))
print(np.round(jax.jit(jax.grad(lambda a: sine(a).sum()))(x), 4))

with jax.enable_x64(True):
    wide = jax.jit(lambda a: jax.pure_callback(double, jax.ShapeDtypeStruct((2,), "float64"), a))
    print(wide(np.arange(2.0) / 3), wide(np.arange(2.0) / 3).block_until_ready().dtype)
told("64 bits")
print(jax.jit(lambda a: jax.pure_callback(lambda v: jnp.sin(v) + jax.jit(jnp.cos)(v),
                                          F32(8), a))(x).round(4))

def there(a):
    seen.append((type(a).__module__ == type(x).__module__, a.devices().pop().platform,
                 jnp.zeros(()).devices().pop().platform))
    return a
jax.block_until_ready(jax.jit(lambda a: jax.pure_callback(there, a, a))(x))
jax.block_until_ready(jax.pure_callback(there, x, x))
jax.block_until_ready(jax.jit(lambda a: io_callback(there, a, a))(x))
jax.jit(lambda a: jax.debug.callback(there, a))(x)
told("arrays on the host")

kept, given, own = [], [], np.full(8, 7, np.float32)
for answer in (lambda v: kept.append(v) or np.asarray(v) * 2,
               lambda v: given.append(np.asarray(v) * 2) or given[-1], lambda v: own):
    keeping = jax.jit(lambda a: jax.pure_callback(answer, F32(8), a * 3))
    results = [keeping(jnp.full(8, float(n))) for n in range(4)]
    jax.block_until_ready(results)
    own[:] = 9
    for array in given:
        array[:] = -1
    print([float(r[7]) for r in results], [float(k[7]) for k in kept])  # nothing is written over

class Kept(logging.Handler):
    def emit(self, record):
        seen.append(record.getMessage())
logging.getLogger().addHandler(Kept())
failing(lambda: jax.block_until_ready(jax.jit(lambda a: jax.pure_callback(int, a, a))(x)))
failing(lambda: jax.block_until_ready(jax.jit(lambda a: io_callback(int, a, a))(x)))
told("what was logged")
"""
)

_ORDER = (
    _HEAD
    + """
first = jax.jit(lambda a: io_callback(lambda v: seen.append(int(v)), None, a, ordered=True))
second = jax.jit(lambda a: (jax.debug.callback(lambda v: seen.append(100 + int(v)), a,
                                               ordered=True), a + 1)[1])
for n in range(5):
    first(n)
    second(n)
told("several programs", ordered=True)
many = jax.jit(lambda: lax.fori_loop(0, 50, lambda i, c: (jax.debug.callback(note, i, ordered=True),
                                                          c + 1)[1], 0))
for n in range(2):
    many()
    jax.debug.callback(note, -n, ordered=True)  # at once, but after what comes first
    jax.debug.print("{}", n, ordered=True)
told("between programs", ordered=True)

@jax.jit
def looping(a):
    def body(total, row):
        got = io_callback(lambda v: (seen.append(float(v)), v)[1], F32(), row, ordered=True)
        return total + got, got
    return lax.scan(body, 0.0, a)
print(*looping(x), looping(x + 10)[0])
told("scan", ordered=True)
jax.jit(lambda: lax.fori_loop(0, 3, lambda i, c: (jax.debug.callback(note, i, c, ordered=True),
                                                  c + 1)[1], 0.0))()
told("fori", ordered=True)
jax.jit(lambda: lax.while_loop(lambda c: c < 3, lambda c: (
    io_callback(note, None, c, ordered=True), c + 1)[1], 0))()
told("while", ordered=True)
for p in (True, False):
    jax.jit(lambda p: lax.cond(p, lambda: jax.debug.callback(note, 1),
                               lambda: jax.debug.callback(note, 2)))(p)
told("cond", ordered=True)
jax.vmap(lambda a: jax.debug.callback(note, a))(x[:3])
told("vmap", ordered=True)
jax.jit(jax.grad(jax.checkpoint(lambda a: (jax.debug.callback(note, a), jnp.sin(a))[1])))(2.0)
told("remat")
jax.lax.scan(lambda c, a: (jax.debug.print("{} {}", c, a, ordered=True), (c + a, a))[1], 0.0, x[:3])
jax.effects_barrier()

counts = []
@jax.jit
def step(a):
    return a + io_callback(lambda: np.float32(len(counts)), F32(), ordered=True)
value = jnp.float32(0)
for n in range(20):
    value = step(value)
    counts.append(n) if value >= 0 else None
print(value)

def stop(a):
    b = a + 1
    jax.debug.breakpoint(stdin=io.StringIO("p b\\nc\\n"), stdout=sys.stdout, backend="cli")
    return b
jax.jit(stop)(x[:2])
jax.effects_barrier()
print()

def checked(a):
    checkify.check(jnp.all(a > 1), "must be above 1: {}", a[0])
    return jnp.log(a)
error, _ = jax.jit(checkify.checkify(checked, errors=checkify.all_checks))(x)
print(error.get())
error, _ = checkify.checkify(jax.jit(lambda a: a / (a - 1)), errors=checkify.float_checks)(x)
print(error.get().splitlines()[0])
for name in ("jax_debug_nans", "jax_debug_infs"):
    jax.config.update(name, True)
    print(failing(lambda: jax.jit(lambda a: jnp.log(a) * 0 if name.endswith("nans") else 1 / a)(x)))
    jax.config.update(name, False)
print(failing(lambda: jax.jit(jax.shard_map(
    lambda a: jax.pure_callback(lambda v: v, a, a), mesh=grid, in_specs=P("a"), out_specs=P("a"),
    axis_names={"a"}))(m)))
"""
)

_SHARDINGS = (
    _HEAD
    + """
tell = lambda s: print(s.spec if hasattr(s, "spec") else s)
def twice(a):
    b = a * 2
    jax.debug.inspect_array_sharding(b, callback=tell)
    jax.debug.inspect_array_sharding(b.T.sum(0), callback=tell)
    return b
jax.jit(twice)(m)
twice(m)
jax.jit(lambda a: jax.debug.inspect_array_sharding(a + 1, callback=tell))(xs)

# Inside of manual parts: whole where all axes are manual, split by the others where some are.
for names, split in (({"a", "b"}, P("a", "b")), ({"a"}, P("a"))):
    inside = jax.shard_map(twice, mesh=grid, in_specs=split, out_specs=split, axis_names=names)
    jax.jit(inside)(m)

# The device that calls is named in the program.
for devices in (None, jax.devices()[3]):
    place = devices and jax.sharding.SingleDeviceSharding(devices)
    for ordered in (False, True):
        seen = []
        def show(a):
            io_callback(lambda v: seen.append(float(v.sum())), None, a, sharding=place,
                        ordered=ordered)
            total = io_callback(lambda v: v.sum(), F32(), a, sharding=place, ordered=ordered)
            return total + jax.pure_callback(lambda v: v.max(), F32(), a, sharding=place)
        shown = jax.jit(show, in_shardings=NamedSharding(mesh, P("i")))
        text = shown.lower(x).as_text()
        found = [line.strip() for line in text.splitlines() if "maximal_mesh" in line]
        print(len(found), found[0], shown(x), seen)
"""
)

_ERRORS = (
    _HEAD
    + """
def inner(v):
    raise ValueError("no such thing")

def outer(v):
    return inner(v)

call = jax.jit(lambda a: jax.pure_callback(outer, F32(8), a))
text = failing(lambda: call(x).block_until_ready())
assert text.startswith("JaxRuntimeError: INTERNAL: ValueError: no such thing"), text
assert "in outer" in text and "in inner" in text and "weft/run" not in text, text
assert "--> <string>:" in text, text
for made, what in (
    (lambda v: (v, v), "Mismatched number of outputs from callback. Expected: 1, Actual: 2"),
    (lambda v: v[:3], "Incorrect output shape for return value #0: Expected: (8,), Actual: (3,)"),
    (lambda v: v.astype(int), "output dtype for return value #0: Expected: float32, Actual: int32"),
):
    call = jax.jit(lambda a: jax.pure_callback(made, F32(8), a))
    text = failing(lambda: call(x).block_until_ready())
    assert what in text and "--> <string>:" in text and "help:" in text, text
for call in (
    lambda a: jax.debug.callback(inner, a),
    lambda a: io_callback(inner, None, a, ordered=True),
    lambda a: io_callback(inner, F32(8), a),
):
    assert "no such thing" in failing(lambda: jax.block_until_ready(jax.jit(call)(xs)))
    jax._src.dispatch.runtime_tokens.clear()
print("done")
"""
)

_BUFFERS = (
    _HEAD
    + """
from jax.experimental.buffer_callback import ExecutionStage, buffer_callback

def add(ctx, out, a, *, b):
    assert ctx.stage == ExecutionStage.EXECUTE and "not available" in failing(lambda: ctx.stream)
    assert (a.writeable, out.writeable) == (False, True)
    seen.append((a.shape, a.ndim, str(a.dtype), out.shape, np.from_dlpack(b).tolist()))
    np.asarray(out)[...] = np.asarray(a)
    np.asarray(out)[...] += np.asarray(b)

call = buffer_callback(add, F32(8), has_side_effect=True)
print(call(x, b=x), jax.jit(call)(x, b=x))
told("operands and results")
rows = jnp.arange(6.0).reshape(2, 3)
for how in ("sequential", "expand_dims", "broadcast_all"):
    batched = buffer_callback(add, F32(3), vmap_method=how)
    print(jax.vmap(lambda r: batched(r, b=r))(rows))

def shared(ctx, out, a):
    assert np.asarray(out[1]).ctypes.data == np.asarray(a).ctypes.data
    np.asarray(out[0])[...] = np.asarray(a) * 2
    np.asarray(out[1])[...] += 1

print(jax.jit(buffer_callback(shared, [F32(8), F32(8)], input_output_aliases={0: 1}))(x), x)
wrong = buffer_callback(lambda ctx, out: 3, F32())
assert "must not return any values" in failing(lambda: jax.block_until_ready(wrong()))
"""
)


def test_what_callbacks_see() -> None:
    assert run_on_weft(_SEEN) == run_on_cpu(_SEEN)


def test_order() -> None:
    assert run_on_weft(_ORDER) == run_on_cpu(_ORDER)


def test_shardings_are_told() -> None:
    assert run_on_weft(_SHARDINGS) == run_on_cpu(_SHARDINGS)


def test_errors() -> None:
    assert run_on_weft(_ERRORS) == "done\n"


_BUFFERS_OF_A_MESH = (
    _HEAD
    + """
from jax.experimental.buffer_callback import buffer_callback

def double(ctx, out, a):
    seen.append(a.shape)
    np.asarray(out)[...] = 2 * np.asarray(a)

print(jax.jit(buffer_callback(double, F32(8)))(xs), seen)
"""
)


def test_buffers() -> None:
    assert run_on_weft(_BUFFERS) == run_on_cpu(_BUFFERS)


def test_buffers_of_a_mesh() -> None:
    """One call for all devices, on whole values; XLA calls on each."""
    expected = "[ 0.  2.  4.  6.  8. 10. 12. 14.] [(8,)]\n"
    assert run_on_weft(_BUFFERS_OF_A_MESH) == expected
