"""Programs of arrays: convolutions, gathers and scatters, searches, sampling, several devices."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.programs_flow import Program
from benchmarks.programs_linalg import Made, _normal, of_jnp


def _integers(high: int, *shape: int) -> Any:
    return np.random.default_rng(5).integers(0, high, shape).astype(np.int32)


# Convolutions and windows


def _convolve(x: Any, k: Any, stride: int = 1, groups: int = 1) -> Any:
    from jax import lax

    names = ("NHWC", "HWIO", "NHWC")
    return lax.conv_general_dilated(
        x, k, (stride, stride), "SAME", dimension_numbers=names, feature_group_count=groups
    )


def convolution_gradient() -> Made:
    """Both gradients of a 3x3 convolution of 16 to 32 channels."""
    import jax

    def loss(x: Any, k: Any) -> Any:
        return (_convolve(x, k) ** 2).sum()

    return jax.grad(loss, (0, 1)), (_normal(4, 32, 32, 16), _normal(3, 3, 16, 32, seed=1))


def strided_gradient() -> Made:
    """Both gradients of a strided 3x3 convolution."""
    import jax

    def loss(x: Any, k: Any) -> Any:
        return (_convolve(x, k, 2) ** 2).sum()

    return jax.grad(loss, (0, 1)), (_normal(8, 28, 28, 8), _normal(3, 3, 8, 16, seed=1))


def depthwise_gradient() -> Made:
    """Both gradients of a depthwise 3x3 convolution."""
    import jax

    def loss(x: Any, k: Any) -> Any:
        return (_convolve(x, k, 1, 32) ** 2).sum()

    return jax.grad(loss, (0, 1)), (_normal(2, 32, 32, 32), _normal(3, 3, 1, 32, seed=1))


def convolution_1d() -> Made:
    """A causal convolution of 64 channels over 512 steps."""
    from jax import lax

    def f(x: Any, k: Any) -> Any:
        return lax.conv_general_dilated(
            x, k, (1,), [(3, 0)], dimension_numbers=("NWC", "WIO", "NWC")
        )

    return f, (_normal(4, 512, 64), _normal(4, 64, 64, seed=1))


def classifier_step() -> Made:
    """A step of gradient descent on a small convolutional classifier."""
    import jax
    import jax.numpy as jnp
    from jax import lax

    def loss(params: Any, x: Any, y: Any) -> Any:
        h = jax.nn.relu(_convolve(x, params[0]))
        h = lax.reduce_window(h, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        h = jax.nn.relu(_convolve(h, params[1])).mean((1, 2)) @ params[2]
        return -jax.nn.log_softmax(h)[jnp.arange(16), y].mean()

    def f(params: Any, x: Any, y: Any) -> Any:
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, jax.grad(loss)(params, x, y))

    shapes = ((3, 3, 1, 8), (3, 3, 8, 16), (16, 10))
    params = tuple(_normal(*shape) * 0.2 for shape in shapes)
    return f, (params, _normal(16, 28, 28, 1), _integers(10, 16))


def channels_first() -> Made:
    """Both gradients of a 5x5 convolution of 3 to 10 channels, channels first."""
    import jax
    from jax import lax

    def loss(x: Any, k: Any) -> Any:
        return (lax.conv_general_dilated(x, k, (1, 1), "SAME") ** 2).sum()

    return jax.grad(loss, (0, 1)), (_normal(4, 3, 31, 29), _normal(10, 3, 5, 5, seed=1))


def patches() -> Made:
    """The 3x3 patches of images of 28 by 28."""
    from jax import lax

    names = ("NHWC", "HWIO", "NHWC")

    def f(x: Any) -> Any:
        return lax.conv_general_dilated_patches(x, (3, 3), (1, 1), "SAME", dimension_numbers=names)

    return f, (_normal(4, 28, 28, 3),)


def pool_gradient() -> Made:
    """The gradient of a maximum over windows."""
    import jax
    import jax.numpy as jnp
    from jax import lax

    def loss(x: Any) -> Any:
        wide, by = (1, 2, 2, 1), (1, 2, 2, 1)
        return (lax.reduce_window(x, -jnp.inf, lax.max, wide, by, "VALID") ** 2).sum()

    return jax.grad(loss), (_normal(8, 32, 32, 16),)


def life() -> Made:
    """20 generations of a game of life of 128 by 128."""
    import jax.numpy as jnp
    from jax import lax

    def f(cells: Any) -> Any:
        def step(_: Any, c: Any) -> Any:
            by = [(y, x) for y in (-1, 0, 1) for x in (-1, 0, 1) if (y, x) != (0, 0)]
            near = sum(jnp.roll(c, at, (0, 1)) for at in by)
            return ((near == 3) | ((c == 1) & (near == 2))).astype(jnp.int32)

        return lax.fori_loop(0, 20, step, cells)

    return f, (_integers(2, 128, 128),)


# Gathers and scatters


def row_gather() -> Made:
    """4,096 rows of an embedding of 10,000 by 64."""
    return lambda table, at: table[at], (_normal(10000, 64), _integers(10000, 4096))


def embedding_gradient() -> Made:
    """The gradient of an embedding: a scatter of rows."""
    import jax

    def loss(table: Any, at: Any, w: Any) -> Any:
        return ((table[at] @ w) ** 2).sum()

    return jax.grad(loss), (_normal(2000, 32), _integers(2000, 1024), _normal(32, 8, seed=1))


def segment_sum() -> Made:
    """20,000 rows of 16 into 500 segments."""
    import jax

    def f(x: Any, at: Any) -> Any:
        return jax.ops.segment_sum(x, at, num_segments=500)

    return f, (_normal(20000, 16), _integers(500, 20000))


def segment_max() -> Made:
    """20,000 numbers into 500 segments, the largest of each."""
    import jax

    def f(x: Any, at: Any) -> Any:
        return jax.ops.segment_max(x, at, num_segments=500)

    return f, (_normal(20000), _integers(500, 20000))


def histogram() -> Made:
    """A histogram of 50,000 numbers in 64 bins."""
    import jax.numpy as jnp

    def f(x: Any) -> Any:
        at = jnp.clip(((x + 4) * 8).astype(jnp.int32), 0, 63)
        return jnp.zeros(64).at[at].add(1.0)

    return f, (_normal(50000),)


def along_axis() -> Made:
    """Entries of 1,024 rows, 32 of each, at places of their own."""
    import jax.numpy as jnp

    def f(x: Any, at: Any) -> Any:
        return jnp.take_along_axis(x, at, axis=1)

    return f, (_normal(1024, 256), _integers(256, 1024, 32))


def bilinear() -> Made:
    """An image of 64 by 64 at 4,096 places between its pixels."""
    from jax.scipy.ndimage import map_coordinates

    def f(image: Any, places: Any) -> Any:
        return map_coordinates(image, places, order=1)

    return f, (_normal(64, 64), np.abs(_normal(2, 4096)) * 20)


# Searches, sorts, sampling


def top_k(count: int, *shape: int) -> Program:
    """The largest of each row."""

    def make() -> Made:
        from jax import lax

        return lambda x: lax.top_k(x, count), (_normal(*shape),)

    return make


def nucleus() -> Made:
    """Nucleus sampling of 8 tokens out of 2,000."""
    import jax
    import jax.numpy as jnp

    def f(key: Any, logits: Any) -> Any:
        order = jnp.argsort(-logits, axis=-1)
        ranked = jnp.take_along_axis(jax.nn.softmax(logits), order, axis=-1)
        kept = jnp.cumsum(ranked, axis=-1) - ranked < 0.9
        cut = jnp.where(kept, jnp.log(ranked), -jnp.inf)
        at = jax.random.categorical(key, cut)
        return jnp.take_along_axis(order, at[:, None], axis=-1)

    return f, (np.array([0, 3], np.uint32), _normal(8, 2000))


def decoding() -> Made:
    """32 greedy steps of a recurrent model of 64 words."""
    import jax.numpy as jnp
    from jax import lax

    def f(embed: Any, w: Any, out: Any) -> Any:
        def step(c: Any, _: Any) -> Any:
            h, token = c
            h = jnp.tanh(embed[token] + w @ h)
            token = jnp.argmax(out @ h).astype(jnp.int32)
            return (h, token), token

        return lax.scan(step, (jnp.zeros(32), jnp.int32(0)), None, length=32)[1]

    return f, (_normal(64, 32), _normal(32, 32, seed=1) * 0.3, _normal(64, 32, seed=2))


def viterbi() -> Made:
    """The likeliest path through 64 steps of 16 states."""
    import jax.numpy as jnp
    from jax import lax

    def f(scores: Any, moves: Any) -> Any:
        def ahead(best: Any, s: Any) -> Any:
            ways = best[:, None] + moves
            return ways.max(0) + s, ways.argmax(0).astype(jnp.int32)

        best, back = lax.scan(ahead, scores[0], scores[1:])

        def behind(at: Any, row: Any) -> Any:
            return row[at], at

        return lax.scan(behind, best.argmax().astype(jnp.int32), back, reverse=True)

    return f, (_normal(64, 16), _normal(16, 16, seed=1))


def nearest() -> Made:
    """A step of k-means: 2,000 points of 8 dims, 16 centres."""
    import jax
    import jax.numpy as jnp

    def f(x: Any, centres: Any) -> Any:
        far = ((x[:, None, :] - centres[None]) ** 2).sum(-1)
        at = jnp.argmin(far, axis=1)
        total = jax.ops.segment_sum(x, at, num_segments=16)
        return total / jnp.maximum(jax.ops.segment_sum(jnp.ones(2000), at, 16), 1)[:, None]

    return f, (_normal(2000, 8), _normal(16, 8, seed=1))


def drawn(kind: str, *given: Any, shape: tuple[int, ...]) -> Program:
    """Draws of a distribution of jax.random."""

    def make() -> Made:
        import jax

        draw = getattr(jax.random, kind)
        return lambda key: draw(key, *given, shape=shape), (np.array([0, 7], np.uint32),)

    return make


def shuffled() -> Made:
    """A permutation of 4,096."""
    import jax

    return lambda key: jax.random.permutation(key, 4096), (np.array([0, 7], np.uint32),)


def pallas() -> Made:
    """A kernel of blocks, interpreted."""
    import jax
    from jax.experimental import pallas as pl

    def kernel(x: Any, y: Any, out: Any) -> None:
        out[...] = x[...] * 2.0 + y[...]

    def f(x: Any, y: Any) -> Any:
        block = pl.BlockSpec((32, 128), lambda i, j: (i, j))
        made = jax.ShapeDtypeStruct(x.shape, x.dtype)
        return pl.pallas_call(
            kernel, out_shape=made, grid=(8, 2), in_specs=[block, block], out_specs=block,
            interpret=True,
        )(x, y)  # fmt: skip

    return f, (_normal(256, 256), _normal(256, 256, seed=1))


# Derivatives and steps


def hessian() -> Made:
    """The Hessian of a small network by its input."""
    import jax
    import jax.numpy as jnp

    def f(x: Any, w: Any, v: Any) -> Any:
        return jax.hessian(lambda x: (jnp.tanh(x @ w) @ v).sum())(x)

    return f, (_normal(16), _normal(16, 32, seed=1), _normal(32, 4, seed=2))


def each_gradient() -> Made:
    """The gradient of each of 64 examples by itself."""
    import jax
    import jax.numpy as jnp

    def loss(w: Any, x: Any, y: Any) -> Any:
        return ((jnp.tanh(x @ w) - y) ** 2).sum()

    f = jax.vmap(jax.grad(loss), (None, 0, 0))
    return f, (_normal(16, 8), _normal(64, 16, seed=1), _normal(64, 8, seed=2))


def adam() -> Made:
    """A step of Adam on a network of two layers."""
    import jax
    import jax.numpy as jnp

    def loss(p: Any, x: Any, y: Any) -> Any:
        return ((jax.nn.gelu(x @ p[0]) @ p[1] - y) ** 2).mean()

    def f(p: Any, m: Any, v: Any, x: Any, y: Any) -> Any:
        g = jax.grad(loss)(p, x, y)
        m = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, m, g)
        v = jax.tree.map(lambda v, g: 0.99 * v + 0.01 * g * g, v, g)
        step = jax.tree.map(lambda p, m, v: p - 1e-3 * m / (jnp.sqrt(v) + 1e-8), p, m, v)
        return step, m, v

    p = (_normal(64, 256) * 0.1, _normal(256, 32) * 0.1)
    zero = tuple(np.zeros_like(x) for x in p)
    return f, (p, zero, zero, _normal(32, 64), _normal(32, 32))


# Several devices


def _on_mesh(x: Any, *names: str | None) -> Any:
    import jax
    from jax.sharding import NamedSharding, PartitionSpec

    mesh = jax.make_mesh((8,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    return jax.device_put(x, NamedSharding(mesh, PartitionSpec(*names)))


def reshard() -> Made:
    """Rows on 8 devices to columns on 8 devices."""
    import jax

    to = _on_mesh(np.zeros((8, 8), np.float32), None, "x").sharding
    return lambda x: jax.lax.with_sharding_constraint(x * 2, to), (
        _on_mesh(_normal(256, 256), "x", None),
    )


def sharded_convolution() -> Made:
    """A 3x3 convolution of images on 8 devices."""
    return _convolve, (_on_mesh(_normal(8, 16, 16, 16), "x"), _on_mesh(_normal(3, 3, 16, 16)))


def sharded_step() -> Made:
    """The gradient of a network of two layers, a batch on 8 devices."""
    import jax

    def loss(p: Any, x: Any) -> Any:
        return (jax.nn.gelu(x @ p[0]) @ p[1]).mean()

    p = (_on_mesh(_normal(64, 128) * 0.1), _on_mesh(_normal(128, 64) * 0.1))
    return jax.grad(loss), (p, _on_mesh(_normal(64, 64), "x"))


ARRAYS: dict[str, Program] = {
    "convolution gradient": convolution_gradient,
    "strided convolution gradient": strided_gradient,
    "depthwise gradient": depthwise_gradient,
    "causal convolution": convolution_1d,
    "classifier step": classifier_step,
    "channels-first gradient": channels_first,
    "image patches": patches,
    "pool gradient": pool_gradient,
    "game of life x20": life,
    "row gather 4096x64": row_gather,
    "embedding gradient": embedding_gradient,
    "segment sum 20000x16": segment_sum,
    "segment max 20000": segment_max,
    "histogram 50000": histogram,
    "take along axis": along_axis,
    "bilinear image 4096": bilinear,
    "sort 100000": of_jnp("sort", _normal(100000)),
    "argsort 256x256": of_jnp("argsort", _normal(256, 256)),
    "median 64x1000": of_jnp("median", _normal(64, 1000), axis=1),
    "searchsorted 4096": of_jnp("searchsorted", np.sort(_normal(1000)), _normal(4096)),
    "cumulative sum 256x1024": of_jnp("cumsum", _normal(256, 1024), axis=1),
    "top-k 256x1000": top_k(8, 256, 1000),
    "top-1 100x333": top_k(1, 100, 333),
    "interpolation 5000": of_jnp("interp", _normal(5000), np.sort(_normal(50)), _normal(50)),
    "nucleus sampling 8x2000": nucleus,
    "greedy decoding x32": decoding,
    "viterbi 64x16": viterbi,
    "k-means step": nearest,
    "random gamma 1000": drawn("gamma", 2.0, shape=(1000,)),
    "random t 1000": drawn("t", 4.0, shape=(1000,)),
    "random normal 100000": drawn("normal", shape=(100000,)),
    "random poisson 1000": drawn("poisson", 3.0, shape=(1000,)),
    "random permutation 4096": shuffled,
    "pallas interpreted": pallas,
    "hessian 16": hessian,
    "gradient of each of 64": each_gradient,
    "adam step": adam,
}
MESHES: dict[str, Program] = {
    "reshard on 8": reshard,
    "convolution on 8": sharded_convolution,
    "gradient on 8": sharded_step,
}
