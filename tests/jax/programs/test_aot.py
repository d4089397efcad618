"""Programs that are lowered and compiled by hand, and what they say of themselves."""

from __future__ import annotations

from tests.jax.door import run_on_weft

_HEAD = """
import re
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

x = jnp.arange(8.0)
A = jnp.arange(256.0).reshape(16, 16) / 100
mesh = jax.make_mesh((4, 2), ("a", "b"), axis_types=(AxisType.Auto,) * 2)
on = lambda *spec: NamedSharding(mesh, P(*spec))
put = lambda value, *spec: jax.device_put(value, on(*spec))
"""

_FACTS = (
    _HEAD
    + """
lowered = jax.jit(lambda a, b: jnp.sin(a) @ b, donate_argnums=0).lower(A, A)
compiled = lowered.compile()
assert np.allclose(compiled(A + 0, A), jnp.sin(A) @ A)
costs = compiled.cost_analysis()
assert lowered.cost_analysis() == costs, lowered.cost_analysis()
assert costs["flops"] == 2 * 16 ** 3 and costs["transcendentals"] == 256, costs
assert costs["bytes accessed"] == 5 * 1024 and costs["bytes accessedout{}"] == 2048, costs
assert costs["utilization0{}"] == 2 and costs["bytes accessed1{}"] == 1024, costs
memory = compiled.memory_analysis()
assert memory.argument_size_in_bytes == 2048 and memory.output_size_in_bytes == 1024
assert memory.temp_size_in_bytes >= 0 and memory.generated_code_size_in_bytes > 0
assert compiled.runtime_executable().hlo_modules()[0].name == "jit__lambda"
assert compiled.input_shardings and compiled.output_shardings
inside, outside = compiled.input_formats, compiled.output_formats
assert outside.layout.major_to_minor == (0, 1), outside
bare = jax.jit(lambda: jnp.ones(3)).lower().compile().runtime_executable()
assert bare.get_parameter_shardings() is None and len(bare.get_output_shardings()) == 1
assert compiled.in_tree.num_leaves == 2 and compiled.out_info.shape == (16, 16)

split = jax.jit(lambda a: a.sum(0)).lower(put(A, "a", "b")).compile()
assert split.memory_analysis().argument_size_in_bytes == 16 * 16 * 4 // 8
looped = jax.jit(lambda a: jax.lax.fori_loop(0, 10, lambda i, c: c @ a, a)).lower(A).compile()
assert looped.cost_analysis()["flops"] >= 10 * 2 * 16 ** 3

traced = jax.jit(lambda a: a * 2).trace(x)
assert traced.out_info.shape == (8,) and traced.lower().compile()(x)[3] == 6
assert jax.eval_shape(jnp.dot, A, A).shape == (16, 16)
for wrong in (lambda: compiled(x, x), lambda: compiled(A)):
    try:
        wrong()
    except TypeError:
        continue
    raise AssertionError("arguments of other types were taken")
print("done")
"""
)

_TEXT = (
    _HEAD
    + """
def names(f, *args, options=None, **more):
    text = jax.jit(f, **more).lower(*args).compile(compiler_options=options).as_text()
    assert "weft.program" not in text, text
    return {*re.findall(r"[ )](all-reduce|all-gather|all-to-all|reduce-scatter|collective-permute"
                        r"|while|conditional|dot|sort|custom-call)\\(", text)}

assert names(lambda a: a.sum(), put(A, "a", "b")) == {"all-reduce"}
assert names(lambda a: a, put(A, "a"), out_shardings=on()) == {"all-gather"}
assert names(lambda a: a * 2, put(A, "a"), out_shardings=on(None, "a")) == {"all-to-all"}
whole = (put(A, None, "b"), put(A, "b"))
assert names(jnp.dot, *whole, out_shardings=on("b")) == {"reduce-scatter", "dot"}
for level in (0, 1, 2):
    found = names(lambda a, b: jnp.tanh(a @ b) @ b, put(A, "a", "b"), put(A, "b", "a"),
                  options={"weft_opt_level": level})
    assert {"dot", "all-gather", "all-reduce"} <= found, found
turn = lambda a: jax.lax.ppermute(a, "a", [(n, (n + 1) % 4) for n in range(4)])
part = dict(mesh=mesh, in_specs=P("a"), out_specs=P("a"))
assert names(jax.shard_map(turn, **part), put(A, "a")) == {"collective-permute"}
index = lambda a: a + jax.lax.axis_index("a")
assert names(jax.shard_map(index, **part), put(A, "a")) == set()
scan = lambda a: jax.lax.scan(lambda c, r: (c + r, c.sum()), jnp.zeros(16), a)
assert names(scan, put(A, None, "b")) == {"all-reduce", "while"}
assert "conditional" in names(lambda a: jax.lax.cond(a[0, 0] > 0, jnp.sin, jnp.cos, a), A)
assert names(jnp.argsort, A) == {"sort"}
assert "custom-call" in names(jnp.linalg.qr, A)
assert names(lambda a: jax.pure_callback(np.asarray, a, a), A) == {"custom-call"}
assert names(lambda a: jax.debug.print("{}", a, ordered=True), A) == {"custom-call"}
assert names(lambda: jnp.ones(3)) == set()
assert names(lambda k: jax.random.normal(k, (8,)), jax.random.key(0)) == set()
names(lambda q: jax.nn.dot_product_attention(q, q, q), put(jnp.ones((8, 16, 4, 8)), "a", None, "b"))
names(lambda a: [jax.scipy.special.gammaln(a + 1), jax.lax.erf_inv(a / 3), jnp.fft.rfft2(a)], A)
text = jax.jit(lambda a: a.sum()).lower(put(A, "a")).compile().as_text()
assert "num_partitions=8" in text and "replica_groups={{0,2,4,6}" in text, text
assert 'op_name="jit(<lambda>)/reduce_sum"' in text, text
print("done")
"""
)


def test_facts() -> None:
    assert run_on_weft(_FACTS) == "done\n"


def test_text() -> None:
    assert run_on_weft(_TEXT) == "done\n"
