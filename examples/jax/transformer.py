"""A decoder-only transformer, trained with optax's AdamW: tensor parallel and data parallel.

JAX_PLATFORMS=weft python examples/jax/transformer.py
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import optax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

VOCABULARY, WIDTH, HEADS, LAYERS, LENGTH, BATCH = 64, 32, 4, 2, 16, 8

# How each parameter is split over the mesh.
SPECS = {
    "qkv": P(None, "model"),
    "out": P("model", None),
    "up": P(None, "model"),
    "down": P("model", None),
    "norm1": P(),
    "norm2": P(),
}


def make(key):
    keys = iter(jax.random.split(key, 2 + 4 * LAYERS))
    shapes = {"qkv": (WIDTH, 3 * WIDTH), "out": (WIDTH, WIDTH)}
    shapes |= {"up": (WIDTH, 4 * WIDTH), "down": (4 * WIDTH, WIDTH)}
    layers = []
    for _ in range(LAYERS):
        layer = {n: jax.random.normal(next(keys), s) * s[0] ** -0.5 for n, s in shapes.items()}
        layers.append(layer | {"norm1": jnp.ones(WIDTH), "norm2": jnp.ones(WIDTH)})
    embedding = jax.random.normal(next(keys), (VOCABULARY, WIDTH)) * 0.1
    return {"embedding": embedding, "layers": layers}


def rms_norm(x, scale):
    return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-6) * scale


def attention(layer, x):
    q, k, v = jnp.split(rms_norm(x, layer["norm1"]) @ layer["qkv"], 3, axis=-1)
    heads = (*x.shape[:2], HEADS, WIDTH // HEADS)
    made = jax.nn.dot_product_attention(
        q.reshape(heads), k.reshape(heads), v.reshape(heads), is_causal=True
    )
    return made.reshape(x.shape) @ layer["out"]


@jax.remat
def block(layer, x):
    x = x + attention(layer, x)
    return x + jax.nn.silu(rms_norm(x, layer["norm2"]) @ layer["up"]) @ layer["down"]


def loss(params, tokens):
    x = params["embedding"][tokens[:, :-1]]
    for layer in params["layers"]:
        x = block(layer, x)
    logits = x @ params["embedding"].T
    return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()


def main():
    count = len(jax.devices())
    model = 2 if count % 2 == 0 else 1
    mesh = jax.make_mesh((count // model, model), ("data", "model"), (AxisType.Auto,) * 2)
    layers = [{n: NamedSharding(mesh, spec) for n, spec in SPECS.items()}] * LAYERS
    shardings = {"embedding": NamedSharding(mesh, P()), "layers": layers}
    params = jax.device_put(make(jax.random.key(0)), shardings)
    optimizer = optax.adamw(optax.warmup_cosine_decay_schedule(0.0, 1e-2, 2, 8))
    state = optimizer.init(params)

    @jax.jit
    def step(params, state, tokens):
        value, grads = jax.value_and_grad(loss)(params, tokens)
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state, value

    tokens = jax.random.randint(jax.random.key(1), (BATCH, LENGTH), 0, VOCABULARY)
    tokens = jax.device_put(tokens, NamedSharding(mesh, P("data")))
    for n in range(5):
        params, state, value = step(params, state, tokens)
        print(f"step {n} loss {value:.6f}")


if __name__ == "__main__":
    main()
