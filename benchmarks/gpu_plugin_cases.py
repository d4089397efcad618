"""Small JAX programs for the plugin on a GPU's memory: each gives the same on JAX's CPU.

A case is a function of no arguments, which creates its arrays on the default device.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

Case = Callable[[], Any]
R = np.random.default_rng(0)
A, B = (R.standard_normal((33, 47)).astype(np.float32) for _ in range(2))
W = R.standard_normal((47, 29)).astype(np.float32)
KEY = np.array([7, 11], np.uint32)


def typed(name: str) -> Case:
    """Arithmetic of an element type."""

    def case() -> Any:
        x = jnp.asarray((A * 4).astype(np.int32) % 7 if "int" in name else A).astype(name)
        return x + x, x * x, x.T, jnp.max(x, 0), x.astype("float32") * 2

    return case


def donated() -> Any:
    add = jax.jit(lambda a: a + 1, donate_argnums=0)
    x = jnp.asarray(A)
    for _ in range(5):
        x = add(x)
    return x


def donated_tree() -> Any:
    step = jax.jit(lambda s, g: jax.tree.map(lambda a, b: a - 0.1 * b, s, g), donate_argnums=0)
    state, grads = {"a": jnp.asarray(A), "b": jnp.asarray(W)}, {"a": jnp.ones(A.shape), "b": 2.0}
    for _ in range(3):
        state = step(state, {"a": grads["a"], "b": jnp.full(W.shape, grads["b"])})
    return state


def kept_argument() -> Any:
    x = jnp.asarray(A)
    seen = np.asarray(x)
    made = jax.jit(lambda a: a * 2, donate_argnums=0)(x)
    return seen, made


def ragged_views() -> Any:
    x = jnp.asarray(A)
    return [jax.jit(lambda a, n=n: a[n:, 1:] * 2)(x) for n in range(3)]


def rnn() -> Any:
    def step(h: Any, x: Any) -> Any:
        h = jnp.tanh(h @ jnp.asarray(W @ W.T) * 0.01 + x)
        return h, h.sum()

    return jax.jit(lambda xs: jax.lax.scan(step, jnp.zeros(47), xs))(A)


def grad_of_scan() -> Any:
    def loss(w: Any) -> Any:
        return jax.lax.scan(lambda h, x: (jnp.tanh(h @ w + x), h.sum()), jnp.zeros(47), A)[0].sum()

    return jax.jit(jax.grad(loss))(jnp.asarray(W @ W.T) * 0.01)


def newton() -> Any:
    return jax.jit(
        lambda a: jax.lax.while_loop(
            lambda s: (abs(s * s - a) > 1e-4).any(), lambda s: (s + a / s) / 2, a
        )
    )(jnp.abs(A) + 1)


def switched() -> Any:
    branches = [lambda x: x + 1, lambda x: x * 2, lambda x: -x]
    call = jax.jit(lambda n, x: jax.lax.switch(n, branches, x))
    return [call(n, A) for n in range(3)]


def cond_gradient() -> Any:
    f = jax.jit(jax.grad(lambda x: jax.lax.cond(x.sum() > 0, jnp.sin, jnp.cos, x).sum()))
    return f(jnp.asarray(A)), f(-jnp.asarray(np.abs(A)))


def draws() -> Any:
    key = jax.random.wrap_key_data(jnp.asarray(KEY))
    one, two, three = jax.random.split(key, 3)
    return (
        jax.random.uniform(one, (65, 33)),
        jax.random.normal(two, (257,)),
        jax.random.randint(three, (31,), 0, 100),
        jax.random.permutation(one, 50),
        jax.random.bernoulli(two, 0.3, (99,)),
        jax.random.categorical(three, jnp.log(jnp.abs(A) + 0.1)),
    )


def dropout() -> Any:
    key = jax.random.wrap_key_data(jnp.asarray(KEY))
    return jax.jit(lambda k, x: jnp.where(jax.random.bernoulli(k, 0.5, x.shape), x * 2, 0))(key, A)


def jacobian() -> Any:
    f = lambda x: jnp.tanh(x @ W)  # noqa: E731
    return jax.jit(jax.jacfwd(f))(A[0]), jax.jit(jax.jacrev(f))(A[1])


def hessian() -> Any:
    return jax.jit(jax.hessian(lambda x: jnp.sum(jnp.sin(x) ** 3)))(A[0, :9])


def per_example() -> Any:
    loss = lambda w, x, y: jnp.sum((jnp.tanh(x @ w) - y) ** 2)  # noqa: E731
    return jax.jit(jax.vmap(jax.grad(loss), (None, 0, 0)))(W, A, A[:, :29])


def attention() -> Any:
    q, k, v = (
        R2.standard_normal((2, 16, 4, 8)).astype("f") for R2 in map(np.random.default_rng, range(3))
    )
    return jax.jit(lambda q, k, v: jax.nn.dot_product_attention(q, k, v, is_causal=True))(q, k, v)


def convolution() -> Any:
    x = np.random.default_rng(1).standard_normal((2, 3, 17, 19)).astype("f")
    k = np.random.default_rng(2).standard_normal((8, 3, 3, 3)).astype("f")
    call = lambda x, k: jax.lax.conv_general_dilated(x, k, (2, 1), "SAME")  # noqa: E731
    return jax.jit(call)(x, k), jax.jit(jax.grad(lambda x, k: call(x, k).sum(), (0, 1)))(x, k)


def called_back() -> Any:
    shape = jax.ShapeDtypeStruct(A.shape, np.float32)
    call = lambda a: jax.pure_callback(lambda a: np.asarray(a) + 1, shape, a * 2) * 3  # noqa: E731
    return jax.jit(call)(A)


def printed() -> Any:
    seen: list[Any] = []
    jax.jit(lambda a: jax.debug.callback(lambda s: seen.append(float(s)), a.sum()))(A)
    jax.effects_barrier()
    return np.float32(seen)


def pinned() -> Any:
    device = next(iter(jnp.asarray(A).devices()))
    sharding = jax.sharding.SingleDeviceSharding(device)
    kinds = {memory.kind for memory in device.addressable_memories()}
    host = sharding.with_memory_kind("pinned_host" if "pinned_host" in kinds else None)
    put = jax.device_put(A, host)
    return put, jax.jit(lambda a: a + 1, out_shardings=host)(jax.device_put(put, sharding))


def pickled() -> Any:
    import pickle

    return pickle.loads(pickle.dumps(jnp.asarray(A) + 1))


def small_llama() -> Any:
    import optax

    from examples import llama

    weights = jax.tree.map(jnp.asarray, llama.make_weights())
    random = np.random.default_rng(3)
    optimizer = optax.adamw(1e-3)
    state = optimizer.init(weights)

    def step(weights: Any, state: Any, tokens: Any) -> Any:
        value, grads = jax.value_and_grad(llama.loss)(weights, tokens)
        updates, state = optimizer.update(grads, state, weights)
        return optax.apply_updates(weights, updates), state, value

    jitted, losses = jax.jit(step, donate_argnums=(0, 1)), []
    for _ in range(5):
        tokens = random.integers(0, 256, (4, 17), dtype=np.int32)
        weights, state, value = jitted(weights, state, tokens)
        losses.append(value)
    return losses, weights["embed"]


def jitted(function: Callable[..., Any], *arguments: Any) -> Case:
    """One compiled call."""
    return lambda: jax.jit(function)(*arguments)


CASES: dict[str, Case] = {
    **{
        f"type {name}": typed(name)
        for name in "float32 bfloat16 float16 int8 uint8 int16 int32 uint32".split()
    },
    "complex": jitted(lambda a, b: (a + 1j * b) * jnp.conj(a - 1j * b), A, B),
    "booleans": jitted(lambda a, b: (a > b, (a > b).sum(), (a > 0) & ~(b > 0)), A, B),
    "eager": lambda: jnp.sin(jnp.asarray(A)) @ jnp.asarray(W) + 1,
    "scalars": jitted(lambda a, n: a * n + 2.5, A, 3),
    "no elements": jitted(lambda a: (a[:0] * 2, a[:0].sum(0)), A),
    "one element": jitted(lambda a: a[:1, :1] + 1, A),
    "identity": jitted(lambda a, b: (a, b, a), A, B),
    "donation": donated,
    "donated trees": donated_tree,
    "donation beside a view": kept_argument,
    "misaligned slices": ragged_views,
    "products": jitted(lambda a, w: (a @ w, w.T @ a.T, (a @ w).sum(1)), A, W),
    "einsum": jitted(lambda a, b: jnp.einsum("ij,kj,il->kl", a, b, a), A, B),
    "softmax": jitted(lambda a: jax.nn.softmax(a, 1), A),
    "norms": jitted(lambda a: (a - a.mean(1, keepdims=True)) / (a.std(1, keepdims=True) + 1), A),
    "logsumexp": jitted(lambda a: jax.nn.logsumexp(a, 0), A),
    "cumulative": jitted(lambda a: (jnp.cumsum(a, 1), jnp.cumprod(a[:5], 0)), A),
    "sort": jitted(lambda a: (jnp.sort(a, 1), jnp.argsort(a, 0)), A),
    "top-k": jitted(lambda a: jax.lax.top_k(a, 5), A),
    "gather": jitted(lambda a, i: (a[i], a[i, i]), A, np.array([3, 1, 30, 1])),
    "scatter": jitted(lambda a, i: (a.at[i].add(1), a.at[:, i].set(0)), A, np.array([3, 1, 30, 1])),
    "concatenation": jitted(lambda a, b: (jnp.concatenate([a, b], 1), jnp.stack([a, b])), A, B),
    "pad and roll": jitted(lambda a: (jnp.pad(a, ((1, 2), (0, 3))), jnp.roll(a, 5, 1)), A),
    "dynamic slices": jitted(lambda a, n: jax.lax.dynamic_slice(a, (n, 2), (5, 7)), A, 4),
    "update in place": jitted(lambda a, n: jax.lax.dynamic_update_slice(a, a[:3], (n, 0)), A, 9),
    "one-hot": jitted(lambda n: jax.nn.one_hot(n, 17), np.arange(23) % 17),
    "segment sums": jitted(lambda a, n: jax.ops.segment_sum(a, n, 7), A, np.arange(33) % 7),
    "fft": jitted(lambda a: jnp.abs(jnp.fft.rfft(a)), A),
    "cholesky": jitted(lambda a: jnp.linalg.cholesky(a @ a.T + 40 * jnp.eye(33)), A),
    "solve": jitted(lambda a, b: jnp.linalg.solve(a @ a.T + 40 * jnp.eye(33), b), A, B),
    "scan": rnn,
    "gradient of a scan": grad_of_scan,
    "fori_loop": jitted(lambda a: jax.lax.fori_loop(0, 9, lambda i, x: x * 0.9 + i, a), A),
    "while_loop": newton,
    "switch": switched,
    "gradient of a cond": cond_gradient,
    "map": jitted(lambda a: jax.lax.map(lambda x: jnp.sort(x)[:3] * 2, a), A),
    "random": draws,
    "dropout": dropout,
    "gradient": jitted(jax.grad(lambda w: jnp.mean(jnp.tanh(A @ w) ** 2)), W),
    "jacobians": jacobian,
    "hessian": hessian,
    "per-example gradients": per_example,
    "checkpoint": jitted(jax.grad(jax.checkpoint(lambda a: jnp.sin(jnp.sin(a @ W)).sum())), A),
    "custom derivative": jitted(jax.grad(lambda a: jax.nn.relu(a).sum() + jax.nn.silu(a).sum()), A),
    "attention": attention,
    "convolution": convolution,
    "pooling": jitted(
        lambda a: jax.lax.reduce_window(a, -jnp.inf, jax.lax.max, (2, 3), (2, 2), "SAME"), A
    ),
    "callback": called_back,
    "debug callback": printed,
    "pinned host memory": pinned,
    "pickle": pickled,
    "special functions": jitted(lambda a: (jax.lax.erf(a), jax.lax.lgamma(jnp.abs(a) + 1)), A),
    "bit operations": jitted(lambda a: jax.lax.bitcast_convert_type(a, jnp.uint32) >> 3, A),
    "llama, optax": small_llama,
}


def meshed(devices: list[Any]) -> tuple[Mesh, Callable[..., NamedSharding]]:
    """A mesh of 4 x 2 devices."""
    mesh = Mesh(np.array(devices[:8]).reshape(4, 2), ("x", "y"))
    return mesh, lambda *spec: NamedSharding(mesh, PartitionSpec(*spec))


def sharded(devices: list[Any]) -> dict[str, Case]:
    """Programs on eight devices."""
    mesh, on = meshed(devices)
    S = np.random.default_rng(5).standard_normal((16, 24)).astype(np.float32)

    def crossed() -> Any:
        split = jax.device_put(S, on("x", "y"))
        turned = jax.jit(lambda a: a.T * 2, out_shardings=on("y", "x"))(split)
        return turned, jax.device_put(turned, on("x")), jax.jit(lambda a, b: a @ b)(split, turned)

    def reduced() -> Any:
        f = jax.shard_map(
            lambda a: jax.lax.psum(a, "x"),
            mesh=mesh,
            in_specs=PartitionSpec("x", "y"),
            out_specs=PartitionSpec(None, "y"),
        )
        return jax.jit(f)(jax.device_put(S, on("x", "y")))

    def exchanged() -> Any:
        def each(a: Any) -> Any:
            right = jax.lax.ppermute(a, "x", [(n, (n + 1) % 4) for n in range(4)])
            return jax.lax.all_gather(right, "y", axis=1, tiled=True) + jax.lax.axis_index("x")

        specs = {"in_specs": PartitionSpec("x", "y"), "out_specs": PartitionSpec("x")}
        return jax.jit(jax.shard_map(each, mesh=mesh, check_vma=False, **specs))(S)

    def replicated() -> Any:
        whole = jax.device_put(S, on())
        return jax.jit(lambda a: a.sum(0))(whole), jax.jit(lambda a: a + 1)(whole)

    def shards() -> Any:
        split = jax.device_put(np.arange(24, dtype="f"), on(("x", "y"))) * 2
        return [jnp.sum(shard.data + 1) for shard in split.addressable_shards]

    def assembled() -> Any:
        sharding = on("x", "y")
        places = sharding.addressable_devices_indices_map(S.shape)
        pieces = [jax.device_put(S[index], device) for device, index in places.items()]
        return jax.make_array_from_single_device_arrays(S.shape, sharding, pieces) * 2

    def trained() -> Any:
        def step(w: Any, x: Any) -> Any:
            loss, grad = jax.value_and_grad(lambda w: jnp.mean(jnp.tanh(x @ w) ** 2))(w)
            return w - 0.1 * grad, loss

        train = jax.jit(step, donate_argnums=0, out_shardings=(on(None, "y"), None))
        w, x = jax.device_put(S.T / 9, on(None, "y")), jax.device_put(S, on("x"))
        losses = []
        for _ in range(5):
            w, loss = train(w, x)
            losses.append(loss)
        return w, losses

    return {
        f"8 devices: {case.__name__}": case
        for case in (crossed, reduced, exchanged, replicated, shards, assembled, trained)
    }
