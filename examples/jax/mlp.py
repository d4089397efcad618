"""A multilayer perceptron, Equinox-style: parameters are a pytree of modules; data-parallel SGD.

JAX_PLATFORMS=weft python examples/jax/mlp.py
"""

from __future__ import annotations

import itertools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P


class Linear(NamedTuple):
    weight: jax.Array
    bias: jax.Array

    def __call__(self, x):
        return x @ self.weight + self.bias


class MLP(NamedTuple):
    layers: tuple[Linear, ...]

    def __call__(self, x):
        *hidden, last = self.layers
        for layer in hidden:
            x = jax.nn.relu(layer(x))
        return last(x)


def make(key, sizes):
    layers = []
    for n, m in itertools.pairwise(sizes):
        key, part = jax.random.split(key)
        layers.append(Linear(jax.random.normal(part, (n, m)) * (2 / n) ** 0.5, jnp.zeros(m)))
    return MLP(tuple(layers))


def loss(model, x, y):
    scores = jax.nn.log_softmax(model(x))
    return -jnp.take_along_axis(scores, y[:, None], axis=1).mean()


@jax.jit
def step(model, x, y):
    value, grads = jax.value_and_grad(loss)(model, x, y)
    return jax.tree.map(lambda p, g: p - 0.1 * g, model, grads), value


def main():
    mesh = jax.make_mesh((len(jax.devices()),), ("data",), (AxisType.Auto,))
    x = jax.random.normal(jax.random.key(0), (64, 20))
    y = (x[:, 0] + x[:, 1] * x[:, 2] > 0).astype(jnp.int32) + (x[:, 3] > 1)
    x, y = jax.device_put((x, y), NamedSharding(mesh, P("data")))
    model = jax.device_put(make(jax.random.key(1), (20, 32, 32, 3)), NamedSharding(mesh, P()))
    for n in range(10):
        model, value = step(model, x, y)
        print(f"step {n} loss {value:.6f}")
    right = (model(x).argmax(axis=1) == y).mean()
    print(f"accuracy {right:.6f}")


if __name__ == "__main__":
    main()
