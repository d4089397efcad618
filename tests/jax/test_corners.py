"""Where JAX's own tests look and few programs go: empty matrices, narrow floats, no such number."""

from __future__ import annotations

from tests.jax.door import start

SOURCE = """
import warnings
from functools import partial
import jax, jax.numpy as jnp, numpy as np
from jax import lax
jnp.ones(1)  # the devices are there before the next line
try:
    from jax.experimental.control_deps import schedule
except ModuleNotFoundError:  # of JAX 0.10 only
    schedule = lambda values: values
from jax.experimental.sparse import BCOO, linalg
from tests.jax.side_by_side import Case, report
warnings.simplefilter("error", RuntimeWarning)  # numpy's, of what Weft looks at

def narrow(name):
    return jnp.asarray(np.arange(-6.0, 6.0).reshape(3, 4)).astype(name)

def rows(shape):
    return np.ones(shape, np.float32)

def solved(data, b):
    columns, starts = np.array([0, 1, 1, 2], np.int32), np.array([0, 2, 3, 4], np.int32)
    return linalg.spsolve(data, columns, starts, b)

def ends(x):
    return jnp.max(x, 1), jnp.min(x), jnp.argmax(x, 0), lax.cummax(x)

cases = []
NARROW = "bfloat16 float8_e4m3fn float8_e4m3fnuz float8_e5m2 float4_e2m1fn int4"
for name in NARROW.split():
    cases.append(Case(f"ends of {name}", ends, partial(lambda n: [narrow(n)], name)))
for shape in ((0, 0), (0, 3), (3, 0), (2, 0, 0), (0, 2, 2)):
    for f in (jax.scipy.linalg.lu, partial(lax.linalg.qr, pivoting=True)):
        cases.append(Case(f"{f} of {shape}", f, partial(lambda s: [rows(s)], shape)))
for f in (jnp.linalg.det, jnp.linalg.inv, jax.scipy.linalg.hessenberg):
    cases.append(Case(f"{f} of nothing", f, lambda: [rows((0, 0))]))
infinite = np.array([complex(x, y) for x in (-np.inf, 0, 1, np.inf) for y in (-np.inf, 0, np.inf)])
for f in (jnp.exp, jnp.expm1, jnp.cosh, jnp.tan):
    cases.append(Case(f"{f}", f, lambda: [infinite.astype(np.complex64)]))
cases.append(Case("irfft of one", jnp.fft.irfft, lambda: [np.ones((2, 1), np.complex64)]))
some = [np.array([2.0, 1.0, 3.0, 4.0], np.float32), np.ones(3, np.float32)]
cases.append(Case("spsolve", solved, lambda: some))
cases.append(Case("its gradient", jax.grad(lambda d, b: solved(d, b).sum(), (0, 1)), lambda: some))

def kept(x):
    lax.dce_sink(x + 1, prevent_mlir_dce=True)
    return x * 2

def ordered(x):
    first, second = jnp.sin(x), jnp.cos(x)
    schedule([second, first])
    return first + second

def by_platform(x):
    return lax.platform_dependent(x, cpu=lambda x: x @ x, default=lambda x: 3 * x.sum()) ** 2

line = np.linspace(0.5, 2, 6, dtype=np.float32)
pivoted = lambda d: lax.linalg.tridiagonal_solve(d, d * 0, d[::-1], jnp.outer(d, d))
square = np.random.default_rng(0).standard_normal((2, 5, 5), np.float32)
slope = jax.grad(lambda d: pivoted(d).sum())
for f in (kept, ordered, by_platform, jax.grad(by_platform), pivoted, slope):
    cases.append(Case(f"{f}", f, lambda: [line]))
    if f is not ordered:  # JAX has no rule for batches of it
        cases.append(Case(f"{f} of batches", jax.vmap(f), lambda: [np.stack([line, line + 1])]))
cases.append(Case("schur", lax.linalg.schur, lambda: [square]))

# Lowered where users have numpy's broadcasting raise an error.
def strictly(x):
    with jax.numpy_rank_promotion("raise"), jax.numpy_dtype_promotion("strict"):
        dims = lax.ScatterDimensionNumbers((1,), (), (0,))
        at = np.array([[1], [5], [4]], np.int32)
        return lax.scatter_add(x, at, np.ones((3, 2), np.float32), dims, mode="drop")

cases.append(Case("strict scatter", strictly, lambda: [line]))

# Rows of two operands in scratch memory: a vector that begins amid a row ends in the next.
weights = np.array([3, 1, 2, 5, 4], np.int32)
for first, second in ((10, 5), (8, 8), (10, 6), (3, 20)):
    known = np.random.default_rng(first).uniform(0, 3, (first + second, 5)).astype(np.float32)
    cases.append(Case(f"covariance of {first} and {second}",
                      lambda m, y: jnp.cov(m, y, fweights=weights),
                      partial(lambda k, n: [k[:n], k[n:]], known, first)))
report(cases)
"""


def test_corners_are_as_on_jax_devices() -> None:
    done = start(SOURCE, "weft,cpu", devices=1, timeout=900)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr[-20000:]}"
