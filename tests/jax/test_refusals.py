"""What JAX programs are told that Weft cannot run: where, why, and what to do."""

from __future__ import annotations

from tests.jax.door import run_on_weft

_SOURCE = """
import warnings
import jax, jax.numpy as jnp, ml_dtypes, numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

def refused(call, *args):
    try:
        jax.block_until_ready(call(*args))
    except Exception as error:
        return str(error)
    raise AssertionError("it was taken")

x, six = jnp.arange(1024.0), ml_dtypes.float6_e2m3fn
mesh = jax.make_mesh((8,), ("i",), axis_types=(AxisType.Auto,))
split = jax.device_put(x, NamedSharding(mesh, P("i")))

# Memory: more than any machine can address
def huge(a):
    return jnp.tile(a, 1 << 38) * 2  # a result

def carried(a):
    rows = lambda c, _: (c + 1, jnp.tile(c, 1 << 19))
    return jax.lax.scan(rows, a, None, length=1 << 19)[1].sum()  # temporaries

for options in ({}, {"weft_target": "numpy"}):
    text = refused(jax.jit(huge, compiler_options=options), x)
    assert text.startswith("RESOURCE_EXHAUSTED: error: out of memory: a result of 1,024 TiB"), text
    assert "<string>:" in text and "tensor<281474976710656xf32>" in text, text
for given in (x, split):
    text = refused(jax.jit(carried), given)
    assert text.startswith("RESOURCE_EXHAUSTED: error: out of memory: temporaries of "), text
    assert "the largest value, of 1,024 TiB, is of this line" in text, text
    assert "<string>:" in text and "help: use smaller sizes" in text, text
assert jax.jit(lambda a: a + 1)(x)[0] == 1  # and all goes on

import weft.pipeline

def exhausted(*given, **options):
    raise MemoryError

partition, weft.pipeline.partition = weft.pipeline.partition, exhausted
text = refused(jax.jit(lambda a: (a + 2).sum()), x)
assert text.startswith("RESOURCE_EXHAUSTED: error: out of memory: jit__lambda cannot be"), text
assert "its largest value, of 4 KiB, is of this line\\n  --> <string>:" in text, text
weft.pipeline.partition = partition

# More bytes than 64 bits count
text = refused(jax.jit(lambda a: jnp.tile(a, (1 << 40, 1 << 20))[0]), x)
assert text.startswith("RESOURCE_EXHAUSTED: error: out of memory"), text
assert "4,294,967,296 TiB, is of this line" in text and "<string>:" in text, text

# Elements that an older jaxlib has no number for
for call in (jax.jit(lambda a: a.astype(six)), lambda a: jnp.asarray(np.ones(3, six))):
    if jax.__version_info__ >= (0, 11):
        assert call(x).dtype == six and call(x)[1] == 1
        continue
    text = refused(call, x)
    assert "float6_e2m3fn: jaxlib" in text and "has no such type" in text, text
assert jax.jit(lambda a: a.astype(six).astype("f4"))(jnp.float32([1.3]))[0] == 1.25

# Pallas
from jax.experimental import pallas as pl

def add_one(given, made):
    made[...] = given[...] + 1

def called(**how):
    return pl.pallas_call(add_one, out_shape=jax.ShapeDtypeStruct((1024,), jnp.float32), **how)

for call in (called(), jax.jit(called())):
    text = refused(call, x)
    assert "pallas_call of add_one: Weft runs Pallas kernels in interpret mode only" in text, text
    assert "help: pass interpret=True to pallas_call" in text and "<string>:" in text, text
for call in (called(interpret=True), jax.jit(called(interpret=True))):
    assert call(x)[1] == 2

# Elements that kernels do not add
narrow = jnp.float32([1, 2, 4]).astype(jnp.float8_e8m0fnu)
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    found = [jax.jit(f)(narrow).astype("f4") for f in (jnp.prod, jnp.max, jnp.min, jnp.prod)]
assert found[0] == 8, found
assert len(said) == 1, [str(one.message) for one in said]
wanted = "stablehlo.reduce of f8E8M0FNU has no kernel of the llvm target: numpy runs it"
assert wanted in str(said[0].message)
print("done")
"""


def test_refusals_and_fallbacks() -> None:
    assert run_on_weft(_SOURCE) == "done\n"
