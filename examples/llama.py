"""A Llama-style model and its training step, on as many virtual devices as you like.

    weft run examples/llama.py:loss --mesh data=2,model=4 --check
    python examples/llama.py

Weights are split along `model` as tensor parallelism does it, the batch along `data`. Nothing in
the model itself speaks of devices.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

import weft
from weft import P

TOKENS, WIDTH, HEADS, HIDDEN, LAYERS = 256, 64, 8, 176, 2
BATCH, LENGTH = 8, 32


def rms_norm(x, scale):
    return x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-5) * scale


def rotated(x):
    """Rotary embeddings: pairs of features turn by an angle that grows with the position."""
    length, half = x.shape[1], x.shape[-1] // 2
    angles = jnp.arange(length)[:, None] / 10_000 ** (jnp.arange(half) / half)
    cos, sin = jnp.cos(angles)[:, None, :], jnp.sin(angles)[:, None, :]
    a, b = x[..., :half], x[..., half:]
    return jnp.concatenate([a * cos - b * sin, a * sin + b * cos], axis=-1)


def attention(layer, x):
    q, k, v = (jnp.einsum("bld,dhf->blhf", x, layer[name]) for name in "qkv")
    scores = jnp.einsum("blhf,bmhf->bhlm", rotated(q), rotated(k)) / q.shape[-1] ** 0.5
    seen = jnp.tril(jnp.ones((x.shape[1], x.shape[1]), bool))
    weights = jax.nn.softmax(jnp.where(seen, scores, -1e30), axis=-1)
    return jnp.einsum("bhlm,bmhf,hfd->bld", weights, v, layer["o"])


def feed_forward(layer, x):
    return (jax.nn.silu(x @ layer["gate"]) * (x @ layer["up"])) @ layer["down"]


def loss(weights, tokens):
    """The mean negative log-likelihood of each next token."""
    x = weights["embed"][tokens[:, :-1]]
    for layer in weights["layers"]:
        x = x + attention(layer, rms_norm(x, layer["norm1"]))
        x = x + feed_forward(layer, rms_norm(x, layer["norm2"]))
    logits = rms_norm(x, weights["norm"]) @ weights["head"]
    chosen = jnp.take_along_axis(jax.nn.log_softmax(logits), tokens[:, 1:, None], axis=-1)
    return -jnp.mean(chosen)


def train_step(weights, tokens):
    """One step of gradient descent: the new weights and the loss before it."""
    value, grads = jax.value_and_grad(loss)(weights, tokens)
    return jax.tree.map(lambda w, g: w - 0.1 * g, weights, grads), value


def make_weights(seed=0):
    random = np.random.default_rng(seed)

    def normal(*shape):
        return (random.standard_normal(shape) / shape[0] ** 0.5).astype(np.float32)

    size = WIDTH // HEADS
    layer = dict.fromkeys("qkv", (WIDTH, HEADS, size)) | {
        "o": (HEADS, size, WIDTH),
        "gate": (WIDTH, HIDDEN),
        "up": (WIDTH, HIDDEN),
        "down": (HIDDEN, WIDTH),
    }
    ones = np.ones(WIDTH, np.float32)
    return {
        "embed": normal(TOKENS, WIDTH),
        "head": normal(WIDTH, TOKENS),
        "norm": ones,
        "layers": [
            {name: normal(*shape) for name, shape in layer.items()} | {"norm1": ones, "norm2": ones}
            for _ in range(LAYERS)
        ],
    }


def make_tokens(seed=0):
    """Sentences of a language whose next word follows from the last one, most of the time."""
    random = np.random.default_rng(seed)
    follows = random.permutation(TOKENS)
    tokens = np.empty((BATCH, LENGTH), np.int32)
    tokens[:, 0] = random.integers(0, TOKENS, BATCH)
    for n in range(1, LENGTH):
        noise = random.integers(0, TOKENS, BATCH)
        tokens[:, n] = np.where(random.random(BATCH) < 0.1, noise, follows[tokens[:, n - 1]])
    return tokens


def inputs():
    return make_weights(), make_tokens()


LAYER = {name: P(None, "model", None) for name in "qkv"} | {
    "o": P("model", None, None),
    "gate": P(None, "model"),
    "up": P(None, "model"),
    "down": P("model", None),
    "norm1": P(None),
    "norm2": P(None),
}
WEIGHTS = {
    "embed": P(None, "model"),
    "head": P(None, "model"),
    "norm": P(None),
    "layers": [LAYER] * LAYERS,
}
shardings = (WEIGHTS, P("data", None))


def main(steps=6):
    weights, tokens = inputs()
    mesh = weft.Mesh(data=2, model=4)
    step = weft.compile(
        train_step,
        weights,
        tokens,
        mesh=mesh,
        in_shardings=shardings,
        out_shardings=(WEIGHTS, P()),
        donate_argnums=0,
    )
    alone = jax.jit(train_step)
    expected = weights
    print(f"{mesh.size} virtual devices, {step.memory().peak / 2**20:.2f} MiB on each")
    for n in range(steps):
        weights, value = step(weights, tokens)
        expected, one = alone(expected, tokens)
        off = abs(float(value) - float(one))
        print(
            f"step {n}  loss {float(value):.4f}  on one device {float(one):.4f}  off by {off:.0e}"
        )
    print("sent by each device in a step:")
    for row in sorted(step.collectives(), key=lambda row: -row.total)[:6]:
        kind, line = row.name.partition(".")[2], row.loc.frames[0][1]
        size = f"{row.total / 1024:7.1f} KiB"
        print(f"  {size}  {row.count:2} x {kind:14} over {row.over:6} llama.py:{line}")


if __name__ == "__main__":
    main()
