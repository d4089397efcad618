"""A small convolutional network with batch normalization and pooling, trained with momentum.

JAX_PLATFORMS=weft python examples/jax/cnn.py
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P


def make(key):
    keys = jax.random.split(key, 3)
    return {
        "conv1": jax.random.normal(keys[0], (3, 3, 1, 8)) * 0.3,
        "conv2": jax.random.normal(keys[1], (3, 3, 8, 16)) * 0.1,
        "scale": jnp.ones(16),
        "shift": jnp.zeros(16),
        "dense": jax.random.normal(keys[2], (16 * 4 * 4, 10)) * 0.05,
    }


def conv(x, kernel):
    return lax.conv_general_dilated(
        x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


def pool(x):
    return lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")


def forward(params, x):
    x = pool(jax.nn.relu(conv(x, params["conv1"])))
    x = conv(x, params["conv2"])
    mean, variance = x.mean((0, 1, 2)), x.var((0, 1, 2))
    x = (x - mean) * lax.rsqrt(variance + 1e-5) * params["scale"] + params["shift"]
    x = pool(jax.nn.gelu(x))
    return x.reshape(x.shape[0], -1) @ params["dense"]


def loss(params, x, y):
    return -(jax.nn.one_hot(y, 10) * jax.nn.log_softmax(forward(params, x))).sum(1).mean()


@partial(jax.jit, donate_argnums=(0, 1))
def step(params, velocity, x, y):
    value, grads = jax.value_and_grad(loss)(params, x, y)
    velocity = jax.tree.map(lambda v, g: 0.9 * v + g, velocity, grads)
    return jax.tree.map(lambda p, v: p - 0.05 * v, params, velocity), velocity, value


def main():
    mesh = jax.make_mesh((len(jax.devices()),), ("data",), (AxisType.Auto,))
    images = jax.random.normal(jax.random.key(0), (16, 16, 16, 1))
    labels = jnp.arange(16) % 10
    images, labels = jax.device_put((images, labels), NamedSharding(mesh, P("data")))
    params = jax.device_put(make(jax.random.key(1)), NamedSharding(mesh, P()))
    velocity = jax.tree.map(jnp.zeros_like, params)
    for n in range(5):
        params, velocity, value = step(params, velocity, images, labels)
        print(f"step {n} loss {value:.6f}")


if __name__ == "__main__":
    main()
