"""Denoising diffusion: a training step with random noise, and a sampler as a loop.

JAX_PLATFORMS=weft python examples/jax/diffusion.py
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

STEPS, PIXELS, HIDDEN = 20, 16, 64
BETAS = jnp.linspace(1e-3, 0.2, STEPS)
KEPT = jnp.cumprod(1 - BETAS)  # of the image after each step


def make(key):
    keys = jax.random.split(key, 3)
    return {
        "in": jax.random.normal(keys[0], (PIXELS + 16, HIDDEN)) * (PIXELS + 16) ** -0.5,
        "mid": jax.random.normal(keys[1], (HIDDEN, HIDDEN)) * HIDDEN**-0.5,
        "out": jax.random.normal(keys[2], (HIDDEN, PIXELS)) * 0.1,
    }


def embed(t):
    angles = t[:, None] * jnp.exp(-jnp.arange(8) / 2)
    return jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=-1)


def denoise(params, x, t):
    x = jnp.concatenate([x, embed(t)], axis=-1)
    x = jax.nn.silu(x @ params["in"])
    x = x + jax.nn.silu(x @ params["mid"])
    return x @ params["out"]


def loss(params, key, images):
    at, noise = jax.random.split(key)
    t = jax.random.randint(at, (images.shape[0],), 0, STEPS)
    noise = jax.random.normal(noise, images.shape)
    kept = KEPT[t][:, None]
    noisy = jnp.sqrt(kept) * images + jnp.sqrt(1 - kept) * noise
    return ((denoise(params, noisy, t.astype(jnp.float32)) - noise) ** 2).mean()


@jax.jit
def step(params, key, images):
    value, grads = jax.value_and_grad(loss)(params, key, images)
    return jax.tree.map(lambda p, g: p - 0.05 * g, params, grads), value


@jax.jit
def sample(params, key):
    def back(n, carry):
        x, key = carry
        t = STEPS - 1 - n
        key, part = jax.random.split(key)
        guess = denoise(params, x, jnp.full(x.shape[0], t, jnp.float32))
        x = (x - BETAS[t] / jnp.sqrt(1 - KEPT[t]) * guess) / jnp.sqrt(1 - BETAS[t])
        noise = jax.random.normal(part, x.shape)
        return x + jnp.where(t > 0, jnp.sqrt(BETAS[t]), 0) * noise, key

    start = jax.random.normal(key, (4, PIXELS))
    return jax.lax.fori_loop(0, STEPS, back, (start, key))[0]


def main():
    mesh = jax.make_mesh((len(jax.devices()),), ("data",), (AxisType.Auto,))
    images = jnp.sin(jnp.arange(32)[:, None] + jnp.arange(PIXELS) / 3)
    images = jax.device_put(images, NamedSharding(mesh, P("data")))
    params = jax.device_put(make(jax.random.key(0)), NamedSharding(mesh, P()))
    for n in range(5):
        params, value = step(params, jax.random.key(n), images)
        print(f"step {n} loss {value:.6f}")
    made = sample(params, jax.random.key(9))
    print(f"sample {jnp.abs(made).mean():.6f} {made.std():.6f}")


if __name__ == "__main__":
    main()
