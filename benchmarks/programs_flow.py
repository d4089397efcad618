"""Programs of loops and branches: filters, solvers, searches, recurrences, nests of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

Program = Callable[[], tuple[Callable[..., Any], tuple[Any, ...]]]


def _normal(*shape: int) -> Any:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def cond_in_scan() -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """A branch in each of 200 steps."""
    import jax.numpy as jnp
    from jax import lax

    def f(x: Any) -> Any:
        def step(c: Any, t: Any) -> Any:
            c = lax.cond(c.sum() > 0, lambda c: c * 0.9 - t, lambda c: c * 1.1 + t, c)
            return c, c[0]

        return lax.scan(step, x, jnp.linspace(0.0, 1.0, 200))

    return f, (_normal(8),)


def while_in_scan() -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """A search in each of 50 steps."""
    import jax.numpy as jnp
    from jax import lax

    def f(x: Any) -> Any:
        def step(c: Any, t: Any) -> Any:
            c = lax.while_loop(lambda v: v > 1.0, lambda v: v * 0.5, c * (t + 2.0))
            return c, c

        return lax.scan(step, x, jnp.arange(50.0))

    return f, (np.float32(3.7),)


def scan_in_scan() -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """20 steps of 20 steps."""
    import jax.numpy as jnp
    from jax import lax

    def f(x: Any) -> Any:
        def inner(c: Any, t: Any) -> Any:
            return c * 0.99 + t, c

        def outer(c: Any, t: Any) -> Any:
            c, ys = lax.scan(inner, c, jnp.arange(20.0) * t)
            return c, ys.sum()

        return lax.scan(outer, x, jnp.linspace(0.0, 1.0, 20))

    return f, (np.float32(1.5),)


def odeint() -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """An adaptive solver of a pendulum."""
    import jax.numpy as jnp
    from jax.experimental.ode import odeint as solve

    def f(y: Any) -> Any:
        def pend(y: Any, t: Any) -> Any:
            return jnp.stack([y[1], -0.25 * y[1] - 5.0 * jnp.sin(y[0])])

        return solve(pend, y, jnp.linspace(0.0, 2.0, 10))

    return f, (np.array([3.0, 0.0], np.float32),)


def runge_kutta() -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """500 fixed steps of two numbers."""
    import jax.numpy as jnp
    from jax import lax

    def f(y: Any) -> Any:
        def rhs(y: Any) -> Any:
            return jnp.stack([y[1], -y[0] - 0.1 * y[1]])

        def step(y: Any, _: Any) -> Any:
            h = 0.01
            k1 = rhs(y)
            k2 = rhs(y + 0.5 * h * k1)
            k3 = rhs(y + 0.5 * h * k2)
            k4 = rhs(y + h * k3)
            return y + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4), None

        return lax.scan(step, y, None, length=500)[0]

    return f, (np.array([1.0, 0.0], np.float32),)


def kalman() -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """A filter of 4 states and 2 measurements, 100 steps."""
    import jax.numpy as jnp
    from jax import lax

    def f(zs: Any) -> Any:
        dt = 0.1
        F = jnp.array([[1, 0, dt, 0], [0, 1, 0, dt], [0, 0, 1, 0], [0, 0, 0, 1.0]])
        H = jnp.array([[1.0, 0, 0, 0], [0, 1, 0, 0]])
        Q, R = 0.01 * jnp.eye(4), 0.1 * jnp.eye(2)

        def step(c: Any, z: Any) -> Any:
            x, P = c
            x, P = F @ x, F @ P @ F.T + Q
            S = H @ P @ H.T + R
            det = S[0, 0] * S[1, 1] - S[0, 1] * S[1, 0]
            inv = jnp.array([[S[1, 1], -S[0, 1]], [-S[1, 0], S[0, 0]]]) / det
            K = P @ H.T @ inv
            x = x + K @ (z - H @ x)
            P = (jnp.eye(4) - K @ H) @ P
            return (x, P), x

        return lax.scan(step, (jnp.zeros(4), jnp.eye(4)), zs)

    return f, (_normal(100, 2),)


def kalman_filtered() -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """A filter of one number in a scan of 1000."""
    from jax import lax

    def f(zs: Any) -> Any:
        def step(c: Any, z: Any) -> Any:
            x, p = c
            p = p + 0.01
            k = p / (p + 0.1)
            x = x + k * (z - x)
            return (x, (1 - k) * p), x

        return lax.scan(step, (0.0, 1.0), zs)

    return f, (_normal(1000),)


def fori_slices() -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Rows that are read and written at a place of each of 64 steps."""
    from jax import lax

    def f(x: Any) -> Any:
        def step(i: Any, x: Any) -> Any:
            row = lax.dynamic_slice(x, (i, 0), (1, 16))
            return lax.dynamic_update_slice(x, row * 2 + 1, (63 - i, 0))

        return lax.fori_loop(0, 64, step, x)

    return f, (_normal(64, 16),)


def while_reduction() -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Power iteration until nothing changes by much."""
    import jax.numpy as jnp
    from jax import lax

    def f(m: Any, v: Any) -> Any:
        def go(c: Any) -> Any:
            return (jnp.abs(c[0] - c[1]).max() > 1e-5) & (c[2] < 200)

        def step(c: Any) -> Any:
            w = m @ c[0]
            return w / jnp.linalg.norm(w), c[0], c[2] + 1

        return lax.while_loop(go, step, (v, jnp.zeros_like(v), 0))

    a = _normal(16, 16)
    return f, (a @ a.T, np.ones(16, np.float32))


def rnn() -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """A tanh cell of 32 over 64 steps, a batch of 8."""
    import jax.numpy as jnp
    from jax import lax

    def f(w: Any, u: Any, xs: Any) -> Any:
        def cell(h: Any, x: Any) -> Any:
            h = jnp.tanh(h @ w + x @ u)
            return h, h

        return lax.scan(cell, jnp.zeros((8, 32)), xs)

    return f, (_normal(32, 32) * 0.1, _normal(16, 32) * 0.1, _normal(64, 8, 16))


def gru_gradient() -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """The gradient of a gated cell of 16 over 32 steps."""
    import jax
    import jax.numpy as jnp
    from jax import lax

    def loss(w: Any, u: Any, xs: Any) -> Any:
        def cell(h: Any, x: Any) -> Any:
            z = jax.nn.sigmoid(x @ u[0] + h @ w[0])
            r = jax.nn.sigmoid(x @ u[1] + h @ w[1])
            n = jnp.tanh(x @ u[2] + (r * h) @ w[2])
            h = (1 - z) * n + z * h
            return h, (h * h).sum()

        return lax.scan(cell, jnp.zeros(16), xs)[1].sum()

    return jax.grad(loss), (_normal(3, 16, 16) * 0.2, _normal(3, 8, 16) * 0.2, _normal(32, 8))


def switch_in_scan() -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """One of four functions in each of 128 steps."""
    import jax.numpy as jnp
    from jax import lax

    def f(x: Any, which: Any) -> Any:
        ways = [lambda v: v + 1, lambda v: v * 0.5, jnp.sin, lambda v: -v]

        def step(v: Any, n: Any) -> Any:
            v = lax.switch(n, ways, v)
            return v, v.sum()

        return lax.scan(step, x, which)

    return f, (_normal(4), np.random.default_rng(1).integers(0, 4, 128).astype(np.int32))


def nested_jit() -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Functions that are compiled by themselves, called in a loop."""
    import jax
    import jax.numpy as jnp
    from jax import lax

    @jax.jit
    def inner(x: Any, t: Any) -> Any:
        return jnp.where(x > t, x - t, x + t)

    @jax.jit
    def twice(x: Any, t: Any) -> Any:
        return inner(inner(x, t), 0.5 * t)

    def f(x: Any) -> Any:
        return lax.fori_loop(0, 100, lambda i, x: twice(x, i * 0.01), x)

    return f, (_normal(16),)


def associative_scan() -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """A linear recurrence of 256, in a tree."""
    from jax import lax

    def f(a: Any, b: Any) -> Any:
        def join(x: Any, y: Any) -> Any:
            return x[0] * y[0], x[1] * y[0] + y[1]

        return lax.associative_scan(join, (a, b))

    return f, (_normal(256), _normal(256))


def newton_in_vmap() -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Roots by Newton's method, 64 at once, each until it is found."""
    import jax
    import jax.numpy as jnp
    from jax import lax

    def root(a: Any) -> Any:
        def go(c: Any) -> Any:
            return (jnp.abs(c[0] ** 3 - a) > 1e-4) & (c[1] < 50)

        def step(c: Any) -> Any:
            x = c[0]
            return x - (x**3 - a) / (3 * x * x), c[1] + 1

        return lax.while_loop(go, step, (jnp.float32(1.0), 0))

    return jax.vmap(root), (np.linspace(0.5, 9.0, 64, dtype=np.float32),)


def mandelbrot() -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """50 iterations of complex numbers."""
    import jax.numpy as jnp
    from jax import lax

    def f(c: Any) -> Any:
        def step(_: Any, v: Any) -> Any:
            z, n = v
            z = z * z + c
            return z, n + (jnp.abs(z) < 2.0)

        return lax.fori_loop(0, 50, step, (jnp.zeros_like(c), jnp.zeros(c.shape, jnp.int32)))

    x, y = np.meshgrid(np.linspace(-1.5, 0.5, 16), np.linspace(-1, 1, 16))
    return f, ((0.3 * (x + 1j * y)).astype(np.complex64),)


def bisection() -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """A search of 40 halvings for each of 32 targets, in a map."""
    import jax.numpy as jnp
    from jax import lax

    def f(ts: Any) -> Any:
        def one(t: Any) -> Any:
            def half(_: Any, lh: Any) -> Any:
                low, high = lh
                mid = 0.5 * (low + high)
                return lax.cond(jnp.sin(mid) < t, lambda: (mid, high), lambda: (low, mid))

            return lax.fori_loop(0, 40, half, (0.0, 1.5))[0]

        return lax.map(one, ts)

    return f, (np.linspace(0.1, 0.9, 32, dtype=np.float32),)


def cg() -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Conjugate gradients on 32 numbers."""
    from jax.scipy.sparse.linalg import cg as solve

    a = _normal(32, 32)
    spd = (a @ a.T + 32 * np.eye(32)).astype(np.float32)
    return lambda m, b: solve(lambda v: m @ v, b, maxiter=20)[0], (spd, _normal(32))


def metropolis() -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """A random walk that is accepted or not, 100 steps."""
    import jax
    import jax.numpy as jnp
    from jax import lax

    def f(key: Any, x: Any) -> Any:
        def step(x: Any, key: Any) -> Any:
            a, b = jax.random.split(key)
            y = x + 0.5 * jax.random.normal(a, x.shape)
            keep = jnp.log(jax.random.uniform(b)) < 0.5 * ((x * x).sum() - (y * y).sum())
            x = jnp.where(keep, y, x)
            return x, x[0]

        return lax.scan(step, x, jax.random.split(key, 100))

    return f, (np.array([0, 7], np.uint32), np.zeros(3, np.float32))


def levenshtein() -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """The distance of two words of 32, a table of loops in loops."""
    import jax.numpy as jnp
    from jax import lax

    def f(a: Any, b: Any) -> Any:
        def row(prev: Any, ch: Any) -> Any:
            def cell(left: Any, t: Any) -> Any:
                diag, up, other = t
                v = jnp.minimum(jnp.minimum(left + 1, up + 1), diag + (ch != other))
                return v, v

            first = prev[0] + 1
            _, rest = lax.scan(cell, first, (prev[:-1], prev[1:], b))
            return jnp.concatenate([first[None], rest]), None

        return lax.scan(row, jnp.arange(33), a)[0][-1]

    g = np.random.default_rng(3)
    return f, tuple(g.integers(0, 4, 32).astype(np.int32) for _ in range(2))


def _lorenz(v: Any) -> Any:
    import jax.numpy as jnp

    x, y, z = v
    return jnp.stack([10 * (y - x), x * (28 - z) - y, x * y - 8 / 3 * z])


def lorenz() -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """1,000 steps of three numbers, each step four slopes."""
    from jax import lax

    def step(v: Any, _: Any) -> Any:
        h = 0.01
        a = _lorenz(v)
        b = _lorenz(v + h / 2 * a)
        c = _lorenz(v + h / 2 * b)
        v = v + h / 6 * (a + 2 * b + 2 * c + _lorenz(v + h * c))
        return v, v

    return lambda v: lax.scan(step, v, None, length=1000), (_normal(3),)


def lorenz_in_vmap() -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """100 steps of three numbers, 64 of them at once."""
    import jax
    from jax import lax

    def step(v: Any, _: Any) -> Any:
        v = v + 0.01 * _lorenz(v + 0.005 * _lorenz(v))
        return v, v.sum()

    return jax.vmap(lambda v: lax.scan(step, v, None, length=100)), (_normal(64, 3),)


def bfgs() -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """A minimum of Rosenbrock's function of four numbers."""
    from jax.scipy.optimize import minimize

    def loss(x: Any) -> Any:
        return (100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2).sum()

    return lambda x: minimize(loss, x, method="BFGS").x, (np.full(4, 0.5, np.float32),)


def shortest_paths() -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """The distances of 48 places by Floyd and Warshall."""
    import jax.numpy as jnp
    from jax import lax

    def f(d: Any) -> Any:
        return lax.fori_loop(0, 48, lambda k, d: jnp.minimum(d, d[:, k, None] + d[k]), d)

    return f, (np.abs(_normal(48, 48)),)


FLOW: dict[str, Program] = {
    "cond in scan of 200": cond_in_scan,
    "while in scan of 50": while_in_scan,
    "scan in scan 20x20": scan_in_scan,
    "odeint": odeint,
    "runge-kutta x500": runge_kutta,
    "kalman 4x2 x100": kalman,
    "kalman scalar x1000": kalman_filtered,
    "fori with slices x64": fori_slices,
    "while with a reduction": while_reduction,
    "rnn scan 64": rnn,
    "gradient of a gru scan": gru_gradient,
    "switch in scan of 128": switch_in_scan,
    "nested jit in fori x100": nested_jit,
    "associative scan 256": associative_scan,
    "newton in vmap": newton_in_vmap,
    "complex iteration x50": mandelbrot,
    "bisection in map": bisection,
    "conjugate gradients": cg,
    "metropolis x100": metropolis,
    "levenshtein 32x32": levenshtein,
    "lorenz x1000": lorenz,
    "lorenz in vmap x100": lorenz_in_vmap,
    "bfgs of 4": bfgs,
    "shortest paths 48": shortest_paths,
}
