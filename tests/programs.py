"""Programs as people write them in JAX, lowered and run by JAX on a CPU.

Run as a script, it writes each program in every form that Weft reads, with its arguments and what
JAX computes from them; eight devices are needed, so it sets them up before JAX is imported.
"""

from __future__ import annotations

import os

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"

import io
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

Program = tuple[Callable[..., Any], tuple[Any, ...]]
random = np.random.default_rng(0)


def normal(*shape: int, scale: float = 1.0) -> Any:
    """An array of normal numbers."""
    return np.float32(scale) * random.standard_normal(shape, np.float32)


# Training steps


def mlp_step() -> Program:
    """One step of gradient descent on a perceptron of two layers."""

    def loss(weights: Any, x: Any, y: Any) -> Any:
        hidden = jax.nn.relu(x @ weights["in"] + weights["bias"])
        return jnp.mean((hidden @ weights["out"] - y) ** 2)

    def step(weights: Any, x: Any, y: Any) -> Any:
        value, slope = jax.value_and_grad(loss)(weights, x, y)
        return value, jax.tree.map(lambda w, g: w - 0.1 * g, weights, slope)

    weights = {"in": normal(8, 16), "bias": normal(16), "out": normal(16, 4)}
    return step, (weights, normal(4, 8), normal(4, 4))


def layer_norm(x: Any, gain: Any) -> Any:
    """Zero mean and unit variance along the last dim, times a gain."""
    mean = x.mean(-1, keepdims=True)
    spread = ((x - mean) ** 2).mean(-1, keepdims=True)
    return (x - mean) * lax.rsqrt(spread + 1e-5) * gain


def attention(x: Any, layer: Any, heads: int) -> Any:
    """Causal attention."""
    batch, length, width = x.shape
    shape = (batch, length, heads, width // heads)
    q, k, v = ((x @ layer[n]).reshape(shape).transpose(0, 2, 1, 3) for n in ("q", "k", "v"))
    scores = q @ k.swapaxes(-1, -2) / np.sqrt(width // heads).astype(np.float32)
    mask = jnp.tril(jnp.ones((length, length), bool))
    weights = jax.nn.softmax(jnp.where(mask, scores, -1e9), -1)
    return (weights @ v).transpose(0, 2, 1, 3).reshape(x.shape) @ layer["o"]


def transformer_loss(weights: Any, tokens: Any, targets: Any, heads: int = 2) -> Any:
    """Cross entropy of the next token."""
    x = weights["embed"][tokens]
    for layer in weights["layers"]:
        x = x + attention(layer_norm(x, layer["g1"]), layer, heads)
        x = x + jax.nn.gelu(layer_norm(x, layer["g2"]) @ layer["up"]) @ layer["down"]
    logits = jax.nn.log_softmax(x @ weights["embed"].T)
    return -jnp.take_along_axis(logits, targets[..., None], -1).mean()


def transformer_weights(layers: int, width: int, tokens: int, draw: Callable[..., Any]) -> Any:
    """The weights of a transformer, each drawn by its shape."""
    shapes = dict.fromkeys(("q", "k", "v", "o"), (width, width))
    shapes |= {"up": (width, 4 * width), "down": (4 * width, width)}
    shapes |= {"g1": (width,), "g2": (width,)}
    layer = lambda: {name: draw(*shape) for name, shape in shapes.items()}  # noqa: E731
    return {"embed": draw(tokens, width), "layers": [layer() for _ in range(layers)]}


def adam_step(weights: Any, first: Any, second: Any, count: Any, tokens: Any, targets: Any) -> Any:
    """One step of Adam on a transformer."""
    value, slope = jax.value_and_grad(transformer_loss)(weights, tokens, targets)
    count = count + 1
    first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, first, slope)
    second = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, second, slope)

    def update(w: Any, m: Any, v: Any) -> Any:
        return w - 1e-3 * (m / (1 - 0.9**count)) / (jnp.sqrt(v / (1 - 0.999**count)) + 1e-3)

    return jax.tree.map(update, weights, first, second), first, second, count, value


def transformer_step() -> Program:
    """A training step of a transformer of two layers."""
    weights = transformer_weights(2, 16, 24, lambda *shape: normal(*shape, scale=0.2))
    zeros = jax.tree.map(np.zeros_like, weights)
    tokens = random.integers(0, 24, (2, 8)).astype(np.int32)
    return adam_step, (weights, zeros, zeros, np.float32(3), tokens, np.roll(tokens, -1, 1))


def recurrent() -> Program:
    """The gradient of a recurrent network, whose loop is a scan."""

    def loss(weights: Any, xs: Any, start: Any) -> Any:
        def cell(state: Any, x: Any) -> Any:
            gate = jax.nn.sigmoid(x @ weights["gate"] + state @ weights["back"])
            state = gate * state + (1 - gate) * jnp.tanh(x @ weights["in"])
            return state, state.sum()

        last, sums = lax.scan(cell, start, xs)
        return last.sum() + (sums**2).mean()

    weights = {"gate": normal(3, 5), "back": normal(5, 5), "in": normal(3, 5)}
    return jax.grad(loss), (weights, normal(6, 2, 3), normal(2, 5))


def convolutional() -> Program:
    """A convolutional network with pooling and batch norm, and its gradient."""

    def loss(weights: Any, x: Any) -> Any:
        dims = ("NHWC", "HWIO", "NHWC")
        x = lax.conv_general_dilated(x, weights["first"], (1, 1), "SAME", dimension_numbers=dims)
        mean, spread = x.mean((0, 1, 2)), x.var((0, 1, 2))
        x = jax.nn.relu((x - mean) / jnp.sqrt(spread + 1e-3) * weights["gain"])
        x = lax.reduce_window(x, -np.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        x = lax.conv_general_dilated(
            x,
            weights["second"],
            (2, 2),
            ((1, 0), (0, 1)),
            rhs_dilation=(1, 2),
            dimension_numbers=dims,
            feature_group_count=2,
        )
        x = lax.reduce_window(x, 0.0, lax.add, (1, 2, 1, 1), (1, 1, 1, 1), "SAME")
        return (x**2).sum()

    weights = {"first": normal(3, 3, 2, 4), "gain": normal(4), "second": normal(2, 2, 2, 6)}
    return jax.value_and_grad(loss), (weights, normal(2, 8, 8, 2))


def mixture_of_experts() -> Program:
    """Tokens go to their two best experts, which hold a fixed number of them, and come back."""

    def route(x: Any, router: Any, experts: Any) -> Any:
        count, room = experts.shape[0], 6
        weights, chosen = lax.top_k(jax.nn.softmax(x @ router), 2)
        hot = jax.nn.one_hot(chosen.reshape(-1), count, dtype=jnp.int32)
        place = (jnp.cumsum(hot, 0) * hot).sum(-1) - 1
        slot = jnp.where(place < room, chosen.reshape(-1) * room + place, count * room)
        source = jnp.repeat(jnp.arange(x.shape[0]), 2)
        filled = jnp.zeros((count * room + 1, x.shape[1])).at[slot].set(x[source])
        inner = filled[:-1].reshape(count, room, -1)
        done = jnp.einsum("erd,edf->erf", inner, experts).reshape(count * room, -1)
        back = jnp.where((slot < count * room)[:, None], done[slot % (count * room)], 0)
        return jnp.zeros_like(x).at[source].add(back * weights.reshape(-1)[:, None])

    def loss(x: Any, router: Any, experts: Any) -> Any:
        return (route(x, router, experts) ** 2).sum()

    return jax.value_and_grad(loss, (0, 1, 2)), (normal(10, 4), normal(4, 3), normal(3, 4, 4))


# Single features


def sorting() -> Program:
    """Sorts of keys with values, top k, argsort, ranks and cumulative functions."""

    def run(x: Any, y: Any) -> Any:
        return (
            jnp.sort(x, 0), jnp.argsort(x, 1, descending=True), lax.top_k(x, 3),
            lax.sort((y, x), dimension=1, num_keys=2), jnp.cumsum(x, 1), lax.cummax(x, 0),
            jnp.argmax(x, 1), jnp.searchsorted(jnp.sort(x[0]), x[1]), jnp.median(x, 0),
        )  # fmt: skip

    return run, (normal(4, 7), random.integers(0, 3, (4, 7)).astype(np.int32))


def transforms() -> Program:
    """Fourier transforms of every kind."""

    def run(x: Any) -> Any:
        real = jnp.fft.rfft(x)
        return jnp.fft.fft(x), real, jnp.fft.irfft(real, 8), jnp.fft.ifft2(x), jnp.fft.fftn(x)

    return run, (normal(2, 4, 8),)


def loops() -> Program:
    """While loops with slices and updates, nested."""

    def run(x: Any, limit: Any) -> Any:
        def grow(state: Any) -> Any:
            n, a = state
            row = lax.dynamic_slice(a, (n % 4, 0), (1, 3)) * 1.5
            return n + 1, lax.dynamic_update_slice(a, row, ((n + 1) % 4, 0))

        count, grown = lax.while_loop(lambda s: s[0] < limit, grow, (jnp.int32(0), x))
        summed = lax.fori_loop(0, 3, lambda i, a: lax.fori_loop(0, i, lambda j, b: b + a[j], a), x)
        return count, grown, summed

    return run, (normal(4, 3), np.int32(6))


def branches() -> Program:
    """Conditions and switches, inside a map."""

    def run(x: Any, which: Any) -> Any:
        kinds = (jnp.sin, lambda v: v * v, lambda v: -v)
        one = lax.switch(which[0], kinds, x)
        two = lax.cond(x.sum() > 0, lambda v: v + 1, lambda v: v - 1, x)
        return one, two, lax.map(lambda n: lax.switch(n, kinds, x), which)

    return run, (normal(5), np.array([2, 0, 1, 9], np.int32))


def random_numbers() -> Program:
    """Threefry's random numbers, as bits and in distributions."""

    def run(seed: Any) -> Any:
        keys = jax.random.split(jax.random.key(seed, impl="threefry2x32"), 6)
        return (
            jax.random.bits(keys[0], (3, 5)), jax.random.uniform(keys[1], (7,)),
            jax.random.normal(keys[2], (4, 4)), jax.random.bernoulli(keys[3], 0.3, (9,)),
            jax.random.permutation(keys[4], 8), jax.random.randint(keys[5], (6,), -5, 5),
        )  # fmt: skip

    return run, (np.uint32(42),)


def functions() -> Program:
    """Functions that JAX lowers to CHLO."""

    def run(x: Any) -> Any:
        y = jnp.abs(x) + 0.5
        return (
            jax.scipy.special.erf(x), jax.scipy.special.erfc(x), lax.lgamma(y), lax.digamma(y),
            lax.erf_inv(jnp.tanh(x)), jnp.arcsinh(x), jnp.arccosh(y + 1), jnp.arctan2(x, y),
            jnp.cbrt(x), jnp.expm1(x), jnp.log1p(y), jax.nn.gelu(x, approximate=False),
            jnp.sinh(x), jnp.nextafter(x, y), lax.bessel_i1e(x), jnp.square(x),
        )  # fmt: skip

    return run, (normal(3, 4),)


def element_types() -> Program:
    """Small floats, integers of all widths, bits, and complex numbers."""

    def run(x: Any, n: Any, z: Any) -> Any:
        half, eight = x.astype(jnp.bfloat16), x.astype(jnp.float8_e4m3fn)
        bits = lax.bitcast_convert_type(x, jnp.uint32)
        return (
            half @ half.T, eight.astype(jnp.float32), (x * 10).astype(jnp.int8), bits >> 3,
            lax.population_count(n), n // 3, n % 5, jnp.left_shift(n, 2), lax.clz(n),
            z * jnp.conj(z), jnp.exp(z), jnp.abs(z), lax.reduce_precision(x, 5, 3), x > half,
        )  # fmt: skip

    z = (normal(3) + 1j * normal(3)).astype(np.complex64)
    return run, (normal(3, 4), random.integers(-99, 99, 6).astype(np.int32), z)


def indexing() -> Program:
    """Gathers, scatters, pads and slices as numpy spells them."""

    def run(x: Any, rows: Any) -> Any:
        return (
            x[rows], x[:, rows[:2]], x[rows, rows % 3], x[1:3, ::2], x[::-1], x.at[rows].max(0.5),
            x.at[rows, 0].multiply(2.0), jnp.pad(x, ((1, 2), (0, 1)), constant_values=7.0),
            jnp.concatenate([x, x[:1]]), jnp.take_along_axis(x, rows[:, None] % 3, 1),
            jax.ops.segment_sum(x, rows, 4), jnp.roll(x, 2, 0), jnp.tile(x, (2, 1)),
        )  # fmt: skip

    return run, (normal(5, 3), np.array([4, 0, 2, 2, 1], np.int32))


def rematerialized() -> Program:
    """A gradient that computes its inner values anew, behind optimization barriers."""

    def loss(w: Any, x: Any) -> Any:
        block = jax.checkpoint(lambda a: jnp.tanh(a @ w) @ w.T)
        return block(block(x)).sum()

    return jax.grad(loss), (normal(4, 6, scale=0.3), normal(2, 4))


# Programs on eight devices, two by four


def _mesh() -> Any:
    return jax.make_mesh((2, 4), ("x", "y"), axis_types=(AxisType.Auto,) * 2)


def on_devices(body: Callable[..., Any], inside: Any, outside: Any, **more: Any) -> Program:
    """A body that runs on every device, on its piece of an array."""
    mapped = jax.shard_map(body, mesh=_mesh(), in_specs=inside, out_specs=outside, **more)
    return mapped, (normal(8, 16),)


def summed() -> Program:
    return on_devices(lambda a: lax.psum(a, "y"), P("x", "y"), P("x", None))


def summed_along_one_axis() -> Program:
    more = {"axis_names": {"y"}}
    return on_devices(lambda a: lax.psum(a, "y"), P(None, "y"), P(None, None), **more)


def largest() -> Program:
    return on_devices(lambda a: lax.pmax(a.max(), ("x", "y")), P("x", "y"), P())


def gathered() -> Program:
    return on_devices(lambda a: lax.all_gather(a, "x"), P("x", "y"), P(None, "x", "y"))


def permuted() -> Program:
    ring = [(n, (n + 1) % 4) for n in range(4)]
    return on_devices(lambda a: lax.ppermute(a, "y", ring) + a, P("x", "y"), P("x", "y"))


def exchanged() -> Program:
    return on_devices(
        lambda a: lax.all_to_all(a, "y", 1, 0, tiled=True), P("y", None), P("y", None)
    )


def scattered() -> Program:
    return on_devices(
        lambda a: lax.psum_scatter(a, "y", scatter_dimension=1, tiled=True), P("x"), P("x", "y")
    )


def told_apart() -> Program:
    return on_devices(
        lambda a: a * (lax.axis_index("x") * 4 + lax.axis_index("y")), P("x", "y"), P("x", "y")
    )


PROGRAMS: dict[str, Callable[[], Program]] = {
    make.__name__: make
    for make in (
        mlp_step, transformer_step, recurrent, convolutional, mixture_of_experts, sorting,
        transforms, loops, branches, random_numbers, functions, element_types, indexing,
        rematerialized, summed, summed_along_one_axis, largest, gathered, permuted, exchanged,
        scattered, told_apart,
    )
}  # fmt: skip


def bytecode(module: Any) -> bytes:
    """A module of jaxlib's as MLIR bytecode."""
    out = io.BytesIO()
    module.operation.write_bytecode(out)
    return out.getvalue()


def write(name: str, folder: Path) -> None:
    """One program in every form, with its arguments and results."""
    function, arguments = PROGRAMS[name]()
    jitted = jax.jit(function, keep_unused=True)
    lowered = jitted.lower(*arguments)
    (folder / f"{name}.mlir").write_text(lowered.as_text())
    (folder / f"{name}.located.mlir").write_text(lowered.as_text(debug_info=True))
    (folder / f"{name}.mlirbc").write_bytes(bytecode(lowered.compiler_ir("stablehlo")))
    exported = jax.export.export(jitted)(*arguments)
    (folder / f"{name}.artifact").write_bytes(exported.mlir_module_serialized)
    for what, tree in (("arguments", arguments), ("results", jitted(*arguments))):
        leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(tree)]
        raw = [leaf.view(np.uint16) if leaf.dtype == jnp.bfloat16 else leaf for leaf in leaves]
        np.savez(folder / f"{name}.{what}.npz", *raw)


if __name__ == "__main__":
    for each in sys.argv[2:] or PROGRAMS:
        write(each, Path(sys.argv[1]))
