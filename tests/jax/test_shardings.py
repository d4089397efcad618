"""Shardings through the door: what each device holds is what numpy cuts out, on any mesh."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from tests.jax.door import run_on_weft
from weft.array.tiles import tiles
from weft.jax.questions.shardings import proto
from weft.mesh import Axis, DimSharding, Mesh, Sharding

HEAD = """
import numpy as np, jax, jax.numpy as jnp
from jax import shard_map
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec as P, SingleDeviceSharding
D = jax.devices()
A = np.arange(64, dtype=np.float32).reshape(8, 8)

def check(array, whole, sharding=None):
    whole = np.asarray(whole)
    assert array.shape == whole.shape and (sharding is None or array.sharding == sharding)
    indices = array.sharding.addressable_devices_indices_map(array.shape)
    assert len(array.addressable_shards) == len(indices)
    for shard in array.addressable_shards:
        assert shard.index == indices[shard.device] and shard.data.devices() == {shard.device}
        np.testing.assert_allclose(np.asarray(shard.data), whole[shard.index], rtol=1e-5)
    np.testing.assert_allclose(np.asarray(array), whole, rtol=1e-5)
"""

RANDOM = (
    HEAD
    + """
rng = np.random.default_rng(7)
FACTORS = [(8,), (2, 4), (4, 2), (2, 2, 2), (1, 8), (4,), (2, 2), (2,), (3, 2), (6,), (7,), (1,)]

def any_mesh(count=None):
    sizes = FACTORS[rng.integers(len(FACTORS))] if count is None else count
    order = rng.permutation(8) if rng.random() < 0.4 else np.arange(8)
    devices = np.array(D)[order[: int(np.prod(sizes))]]
    return Mesh(devices.reshape(sizes), tuple("xyz"[: len(sizes)]))

def any_spec(mesh, rank):
    names = [*rng.permutation(list(mesh.axis_names))]
    entries = []
    for _ in range(rank):
        take = rng.integers(0, len(names) + 1) if rng.random() < 0.6 else 0
        some, names = names[:take], names[take:]
        entries.append(tuple(map(str, some)) or None)
    return P(*entries)

for case in range(25):
    mesh, rank = any_mesh(), int(rng.integers(0, 4))
    shape = tuple(int(n) for n in rng.choice([0, 168, 168, 336] if case % 5 == 0 else [168], rank))
    if np.prod(shape) > 30000:
        shape = shape[:1]
    whole = rng.standard_normal(shape).astype(np.float32)
    first = NamedSharding(mesh, any_spec(mesh, len(shape)))
    put = jax.device_put(whole, first)
    check(put, whole, first)
    check(jax.jit(lambda a: a * 2 + 1)(put), whole * 2 + 1)
    second = any_mesh(tuple(mesh.axis_sizes)) if case % 2 else any_mesh()
    target = NamedSharding(second, any_spec(second, len(shape)))
    check(jax.device_put(put, target), whole, target)
    single = SingleDeviceSharding(D[int(rng.integers(8))])
    check(jax.device_put(put, single), whole, single)
    check(jax.device_put(jax.device_put(whole, single), first), whole, first)
    made = jax.make_array_from_callback(shape, first, lambda index: whole[index])
    check(made, whole, first)
    inside = jax.jit(lambda a: -a, in_shardings=first, out_shardings=first)
    check(inside(whole), -whole, first)
print("done")
"""
)


def test_random_meshes_and_shardings() -> None:
    assert run_on_weft(RANDOM) == "done\n"


SEVERAL = (
    HEAD
    + """
def on(*sizes, names="xy", order=range(8)):
    return Mesh(np.array(D)[list(order)].reshape(sizes), tuple(names[: len(sizes)]))

grid, line, other, thin = on(4, 2), on(8, names="z"), on(2, 4), on(8, 1)
backward = on(4, 2, order=range(7, -1, -1))
shuffled = on(4, 2, order=[3, 1, 2, 0, 7, 5, 6, 4])
pairs = [
    (grid, P("x")), (line, P(None, "z")), (other, P("y", "x")), (thin, P(None, ("y", "x"))),
    (backward, P("y", "x")), (shuffled, P(("y", "x"))), (backward, P()),
]
every = [NamedSharding(*pair) for pair in pairs]
for source in every:
    for target in every:
        check(jax.device_put(jax.device_put(A, source), target), A, target)

# One program on several meshes.
a = jax.device_put(A, NamedSharding(grid, P("x", "y")))
b = jax.device_put(A, NamedSharding(line, P("z")))
check(jax.jit(lambda a, b: a @ b)(a, b), A @ A)
along_x = shard_map(lambda a: jax.lax.psum(a * jax.lax.axis_index("x"), "x"), mesh=grid,
                    in_specs=P("x"), out_specs=P())
along_z = shard_map(lambda a: jax.lax.psum(a * jax.lax.axis_index("z"), "z"), mesh=line,
                    in_specs=P("z"), out_specs=P())
one, two = jax.jit(lambda a: (along_x(a), along_z(a)), out_shardings=NamedSharding(grid, P()))(A)
check(one, sum(n * A[2 * n : 2 * n + 2] for n in range(4)))
check(two, sum(n * A[n : n + 1] for n in range(8)))

# Orders other than that of the devices, by hand, too.
index = jax.jit(shard_map(lambda a: a * jax.lax.axis_index("x"), mesh=backward,
                          in_specs=P("x", "y"), out_specs=P("x", "y")))
check(index(A), A * np.repeat(np.arange(4), 2)[:, None])
turned = Mesh(np.array(D).reshape(2, 4).T, ("x", "y"))
check(jax.jit(lambda a: a @ a.T)(jax.device_put(A, NamedSharding(turned, P("x", "y")))), A @ A.T)
part = Mesh(np.array(D[2:6]).reshape(2, 2), ("a", "b"))
check(jax.jit(lambda a: a.T @ a)(jax.device_put(A, NamedSharding(part, P("b", "a")))), A.T @ A)

# Meshes that have no parts in common.
six = np.array(D[:6])
wide, high = Mesh(six.reshape(2, 3), ("x", "y")), Mesh(six.reshape(3, 2), ("x", "y"))
B = np.arange(36, dtype=np.float32).reshape(6, 6)
wide_b = jax.device_put(B, NamedSharding(wide, P("x", "y")))
for spec in (P("x"), P(None, "y"), P("y", "x"), P("x", "y"), P(None, ("y", "x")), P(("x", "y"))):
    there = NamedSharding(high, spec)
    high_b = jax.device_put(B, there)
    check(jax.jit(lambda a, b: a @ b)(wide_b, high_b), B @ B)
    check(jax.jit(lambda a: a.T, out_shardings=there)(wide_b), B.T, there)
    both = jax.jit(lambda a, b: (a + b, b * 2), out_shardings=(wide_b.sharding, there))
    total, twice = both.lower(wide_b, high_b).compile()(wide_b, high_b)
    check(total, B * 2, wide_b.sharding)
    check(twice, B * 2, there)
    constrained = jax.jit(lambda a: jax.lax.with_sharding_constraint(a + 1, there))
    check(constrained(wide_b), B + 1, there)
along_y = shard_map(lambda a: jax.lax.psum(a, "y"), mesh=high,
                    in_specs=P("x", "y"), out_specs=P("x"))
check(jax.jit(lambda a: along_y(a * 2))(wide_b), B[:, :3] * 2 + B[:, 3:] * 2)
by_hand = lambda mesh: shard_map(lambda a: a + 1, mesh=mesh, in_specs=P("x"), out_specs=P("x"))
try:
    jax.jit(lambda a: by_hand(wide)(a) + by_hand(high)(a))(B)
except jax.errors.JaxRuntimeError as error:
    print("one is used by hand" in str(error))
"""
)


def test_several_meshes_in_one_program() -> None:
    assert run_on_weft(SEVERAL) == "True\n"


REPORTED = (
    HEAD
    + """
mesh = jax.make_mesh((4, 2), ("x", "y"), axis_types=(AxisType.Auto,) * 2)
explicit = jax.make_mesh((4, 2), ("x", "y"), axis_types=(AxisType.Explicit,) * 2)
split = NamedSharding(mesh, P("x", "y"))
shape = jax.ShapeDtypeStruct((8, 8), np.float32, sharding=split)
compiled = jax.jit(lambda a, b: (a + b, a.T, a.sum())).lower(shape, shape).compile()
assert compiled.input_shardings[0] == (split, split)
assert [s.spec for s in compiled.output_shardings] == [P("x", "y"), P("y", "x"), P()]
asked = jax.jit(lambda a: a * 2, out_shardings=split).lower(A).compile()
assert asked.input_shardings[0][0].is_equivalent_to(split, 2)

# An unreduced value is shown as such, and added up when it is resharded.
with jax.set_mesh(explicit):
    a, b = jax.device_put(A, P("x", "y")), jax.device_put(A, P("y"))
    out = P("x", None, unreduced={"y"})
    unreduced = jax.jit(lambda a, b: jnp.einsum("ab,bc->ac", a, b, out_sharding=out))(a, b)
    assert unreduced.sharding.spec == out
    halves = [np.asarray(shard.data) for shard in unreduced.addressable_shards[:2]]
    np.testing.assert_allclose(sum(halves), (A @ A)[:2])
    check(jax.jit(lambda c: jax.sharding.reshard(c, P("x", None)))(unreduced), A @ A)
    check(jax.jit(lambda a: jax.sharding.reshard(a, P(None, "x")))(a), A)

loose = NamedSharding(mesh, P(P.UNCONSTRAINED, "y"))
constrained = jax.jit(lambda a: jax.lax.with_sharding_constraint(a, loose))
assert constrained(jax.device_put(A, NamedSharding(mesh, P("x")))).sharding.spec == P("x", "y")

for check_vma in (True, False):
    inner = lambda a: jax.lax.psum(a, "y")
    outer = lambda a: 2 * shard_map(inner, in_specs=P(None, "y"), out_specs=P(), axis_names={"y"},
                                    check_vma=check_vma)(a)
    nested = shard_map(outer, mesh=mesh, in_specs=P("x"), out_specs=P("x"), axis_names={"x"},
                       check_vma=check_vma)
    check(jax.jit(nested)(A), 2 * (A[:, :4] + A[:, 4:]))
    partly = shard_map(lambda a: jax.lax.psum(a @ a.T, "x"), mesh=mesh, in_specs=P("x"),
                       out_specs=P(), axis_names={"x"}, check_vma=check_vma)
    rows = A.reshape(4, 2, 8)
    check(jax.jit(partly)(jax.device_put(A, split)), (rows @ rows.transpose(0, 2, 1)).sum(0))
check(jax.pmap(lambda a: a * jax.lax.psum(a, "i"), "i")(A), A * A.sum(0))
print("done")
"""
)


def test_shardings_are_told_and_nested_maps_run() -> None:
    assert run_on_weft(REPORTED) == "done\n"


def test_tiles_are_those_of_jax() -> None:
    """Differential: the sharding of every spec on a mesh, as JAX writes it."""
    jax = pytest.importorskip("jax")
    from jax._src.lib import xla_client

    types = (jax.sharding.AxisType.Explicit,) * 3
    mesh = jax.sharding.AbstractMesh((2, 3, 2), ("x", "y", "z"), axis_types=types)
    ours = Mesh(x=2, y=3, z=2)
    for count in range(4):
        for names in itertools.permutations("xyz", count):
            for cut, last in itertools.product(range(count + 1), range(2)):
                parts = names[:cut], names[cut : count - last]
                unreduced = names[max(cut, count - last) :] if last else ()
                spec = jax.sharding.PartitionSpec(*parts, unreduced=set(unreduced))
                theirs = jax.sharding.NamedSharding(mesh, spec)._to_xla_hlo_sharding(2)
                dims = tuple([DimSharding(tuple(map(Axis, part))) for part in parts])
                sharding = Sharding("mesh", dims, unreduced=tuple(map(Axis, unreduced)))
                made = tiles(sharding, ours, None)
                assert xla_client.HloSharding.from_string(made.text()) == theirs
                read = xla_client.OpSharding()
                read.ParseFromString(proto(made))
                assert xla_client.HloSharding.from_proto(read) == theirs


def test_tiles_follow_the_order_of_devices() -> None:
    made = tiles(Sharding("mesh", (DimSharding((Axis("x"),)),)), Mesh(x=4), (3, 2, 1, 0))
    assert made.text() == "{devices=[4]3,2,1,0}"
    assert np.prod(made.shape) == 4
