"""Programs of linear algebra: factorizations, small batched solves, transforms, sparse products."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.programs_flow import Program

Made = tuple[Callable[..., Any], tuple[Any, ...]]


def _normal(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def _complex(*shape: int) -> Any:
    return (_normal(*shape) + 1j * _normal(*shape, seed=1)).astype(np.complex64)


def _definite(*shape: int) -> Any:
    a = _normal(*shape)
    return a @ np.swapaxes(a, -1, -2) + shape[-1] * np.eye(shape[-1], dtype=np.float32)


def _lower(*shape: int) -> Any:
    size = np.eye(shape[-1], dtype=np.float32) * shape[-1]
    return np.tril(_normal(*shape)) + size


def of_jnp(path: str, *arrays: Any, **options: Any) -> Program:
    """A function of jax.numpy by its dotted name, on arrays."""

    def make() -> Made:
        import jax.numpy as jnp

        function: Any = jnp
        for part in path.split("."):
            function = getattr(function, part)
        return lambda *given: function(*given, **options), arrays

    return make


def triangular(matrix: Any, right: Any) -> Program:
    """One triangular solve."""

    def make() -> Made:
        from jax.scipy.linalg import solve_triangular

        return lambda a, b: solve_triangular(a, b, lower=True), (matrix, right)

    return make


def cho_solve() -> Made:
    """A Cholesky factor and the two solves with it."""
    from jax.scipy.linalg import cho_factor
    from jax.scipy.linalg import cho_solve as solve

    return lambda a, b: solve(cho_factor(a), b), (_definite(64, 64), _normal(64, 8))


def expm() -> Made:
    """The exponential of a matrix of 16."""
    from jax.scipy.linalg import expm as exponential

    return exponential, (_normal(16, 16) * 0.3,)


def gaussian_process() -> Made:
    """The likelihood of a Gaussian process of 64 points, and its gradient."""
    import jax
    import jax.numpy as jnp
    from jax.scipy.linalg import solve_triangular

    def loss(log_scale: Any, x: Any, y: Any) -> Any:
        far = (x[:, None] - x[None, :]) ** 2
        k = jnp.exp(-far / jnp.exp(log_scale)) + 0.1 * jnp.eye(64)
        low = jnp.linalg.cholesky(k)
        a = solve_triangular(low, y, lower=True)
        return 0.5 * a @ a + jnp.log(jnp.diag(low)).sum()

    return jax.value_and_grad(loss), (np.float32(0.1), _normal(64), _normal(64, seed=1))


def solve_gradient() -> Made:
    """The gradient of 64 solves of 6 by 6."""
    import jax
    import jax.numpy as jnp

    def loss(a: Any, b: Any) -> Any:
        return (jnp.linalg.solve(a, b) ** 2).sum()

    return jax.grad(loss), (_definite(64, 6, 6), _normal(64, 6, 1))


# Transforms and complex numbers


def spectral_filter() -> Made:
    """A low-pass filter of an image by its transform."""
    import jax.numpy as jnp

    def f(image: Any, mask: Any) -> Any:
        return jnp.fft.irfft2(jnp.fft.rfft2(image) * mask, s=(128, 128))

    return f, (_normal(128, 128), (np.abs(_normal(128, 65)) < 1).astype(np.float32))


def fft_convolution() -> Made:
    """A signal of 4096 by a filter of 129, by transforms."""
    from jax.scipy.signal import fftconvolve

    return lambda x, k: fftconvolve(x, k, mode="same"), (_normal(4096), _normal(129, seed=1))


def phases() -> Made:
    """Phases, magnitudes and products of 64k complex numbers."""
    import jax.numpy as jnp

    def f(z: Any) -> Any:
        w = jnp.exp(1j * jnp.angle(z)) * jnp.conj(z)
        return jnp.abs(w + z * z).sum(), w

    return f, (_complex(256, 256),)


def julia() -> Made:
    """60 iterations of 64k complex numbers."""
    import jax.numpy as jnp
    from jax import lax

    def f(z: Any) -> Any:
        def step(_: Any, c: Any) -> Any:
            z, n = c
            inside = (z.real**2 + z.imag**2) < 4.0
            z = jnp.where(inside, z * z + (-0.4 + 0.6j), z)
            return z, n + inside

        return lax.fori_loop(0, 60, step, (z, jnp.zeros(z.shape, jnp.int32)))[1]

    return f, (_complex(256, 256),)


# Sparse products


def _sparse(rows: int, columns: int, count: int) -> tuple[Any, Any]:
    g = np.random.default_rng(2)
    flat = np.sort(g.choice(rows * columns, count, replace=False))
    indices = np.stack([flat // columns, flat % columns], 1).astype(np.int32)
    return _normal(count), indices


def sparse_vector() -> Made:
    """A sparse matrix of 2,000 by 2,000, 20,000 numbers, by a vector."""
    from jax.experimental import sparse

    def f(data: Any, indices: Any, x: Any) -> Any:
        return sparse.BCOO((data, indices), shape=(2000, 2000)) @ x

    return f, (*_sparse(2000, 2000, 20000), _normal(2000, seed=3))


def sparse_matrix() -> Made:
    """The same by a matrix of 64 columns."""
    from jax.experimental import sparse

    def f(data: Any, indices: Any, x: Any) -> Any:
        return sparse.BCOO((data, indices), shape=(2000, 2000)) @ x

    return f, (*_sparse(2000, 2000, 20000), _normal(2000, 64, seed=3))


def message_passing() -> Made:
    """A layer of a graph network: gathers along edges, a segment sum, a product."""
    import jax
    import jax.numpy as jnp

    def f(x: Any, w: Any, senders: Any, receivers: Any) -> Any:
        sent = x[senders] @ w
        return jax.nn.relu(jax.ops.segment_sum(sent, receivers, num_segments=2000)) + jnp.tanh(x)

    g = np.random.default_rng(4)
    edges = [g.integers(0, 2000, 10000).astype(np.int32) for _ in range(2)]
    return f, (_normal(2000, 32), _normal(32, 32, seed=1), *edges)


def page_rank() -> Made:
    """30 steps of a random walk on a graph."""
    import jax
    from jax import lax

    def f(senders: Any, receivers: Any, degree: Any) -> Any:
        def step(_: Any, r: Any) -> Any:
            sent = (r / degree)[senders]
            return 0.15 / 1000 + 0.85 * jax.ops.segment_sum(sent, receivers, num_segments=1000)

        return lax.fori_loop(0, 30, step, degree * 0 + 1e-3)

    g = np.random.default_rng(4)
    senders, receivers = (g.integers(0, 1000, 8000).astype(np.int32) for _ in range(2))
    degree = np.maximum(np.bincount(senders, minlength=1000), 1).astype(np.float32)
    return f, (senders, receivers, degree)


def _symmetric(*shape: int) -> Any:
    a = _normal(*shape)
    return a + np.swapaxes(a, -1, -2)


LINALG: dict[str, Program] = {
    "eigh 64": of_jnp("linalg.eigh", _symmetric(64, 64)),
    "eigh 16 of 4x4": of_jnp("linalg.eigh", _symmetric(16, 4, 4)),
    "svd 64x32": of_jnp("linalg.svd", _normal(64, 32), full_matrices=False),
    "svd 32 of 8x8": of_jnp("linalg.svd", _normal(32, 8, 8), full_matrices=False),
    "qr 64x32": of_jnp("linalg.qr", _normal(64, 32)),
    "qr 64 of 8x8": of_jnp("linalg.qr", _normal(64, 8, 8)),
    "solve 64 of 8x8": of_jnp("linalg.solve", _definite(64, 8, 8), _normal(64, 8, 1)),
    "solve 128": of_jnp("linalg.solve", _definite(128, 128), _normal(128, 4)),
    "inverse 256 of 3x3": of_jnp("linalg.inv", _definite(256, 3, 3)),
    "determinants 64 of 6x6": of_jnp("linalg.det", _definite(64, 6, 6)),
    "triangular solve 16": triangular(_lower(16, 16), _normal(16, 4)),
    "triangular solve 128": triangular(_lower(128, 128), _normal(128, 32)),
    "triangular 128 of 8x8": triangular(_lower(128, 8, 8), _normal(128, 8, 2)),
    "cholesky 96": of_jnp("linalg.cholesky", _definite(96, 96)),
    "cholesky 128 of 8x8": of_jnp("linalg.cholesky", _definite(128, 8, 8)),
    "cholesky solve 64": cho_solve,
    "expm 16": expm,
    "gaussian process 64": gaussian_process,
    "gradient of 64 solves": solve_gradient,
    "fft 1024": of_jnp("fft.fft", _complex(1024)),
    "fft 64 of 256": of_jnp("fft.fft", _complex(64, 256)),
    "fft 1000": of_jnp("fft.fft", _complex(1000)),
    "rfft 8192": of_jnp("fft.rfft", _normal(8192)),
    "fft2 64x64": of_jnp("fft.fft2", _complex(64, 64)),
    "fft2 256x256": of_jnp("fft.fft2", _complex(256, 256)),
    "spectral filter 128": spectral_filter,
    "fft convolution 4096": fft_convolution,
    "fft 997": of_jnp("fft.fft", _complex(997)),
    "fft 40 of 34": of_jnp("fft.fft", _complex(40, 34)),
    "fft 65536": of_jnp("fft.fft", _complex(65536)),
    "rfft 20 of 99": of_jnp("fft.rfft", _normal(20, 99)),
    "fft2 37x41": of_jnp("fft.fft2", _complex(37, 41)),
    "eigh 150": of_jnp("linalg.eigh", _symmetric(150, 150)),
    "svd 150": of_jnp("linalg.svd", _normal(150, 150)),
    "qr 100x17": of_jnp("linalg.qr", _normal(100, 17)),
    "cross 5000": of_jnp("cross", _normal(5000, 3), _normal(5000, 3, seed=1)),
    "complex tanh 5000": of_jnp("tanh", _complex(5000)),
    "complex power 5000": of_jnp("power", _complex(5000), _complex(5000)),
    "complex product 128": of_jnp("matmul", _complex(128, 128), _complex(128, 128)),
    "complex product 16 of 32": of_jnp("matmul", _complex(16, 32, 32), _complex(16, 32, 32)),
    "phases 64k": phases,
    "julia set 64k x60": julia,
    "sparse by vector": sparse_vector,
    "sparse by matrix": sparse_matrix,
    "message passing": message_passing,
    "page rank x30": page_rank,
}
