"""`weft.compile`: JAX functions and StableHLO programs run on meshes, and equal one device."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import PartitionSpec as JaxP

import weft
import weft.machine
from tests.capture.jax_functions import CASES, RANDOM, normal
from tests.capture.test_jax import LINALG, assert_same
from weft import Mesh, P, WeftError

MESH = Mesh(data=2, model=4)
GOLDEN = Path(__file__).parent / "golden" / "compile"


def split_first(args: Any) -> Any:
    """Every array split along its first dim, whether or not the size divides."""
    return jax.tree.map(lambda a: P("data") if np.ndim(a) else None, args)


@pytest.mark.parametrize("name", CASES)
def test_functions_on_a_mesh_give_what_jax_gives(name: str):
    fn, args = CASES[name]
    compiled = weft.compile(fn, *args, mesh=MESH, in_shardings=split_first(args))
    assert_same(compiled(*args), jax.jit(fn)(*args))


@pytest.mark.parametrize("name", RANDOM)
def test_random_numbers_do_not_depend_on_the_mesh(name: str):
    fn, args = RANDOM[name]
    out = jax.tree.map(lambda a: P("model") if a.ndim else None, jax.eval_shape(fn, *args))
    compiled = weft.compile(fn, *args, mesh=MESH, out_shardings=out)
    assert_same(compiled(*args), jax.jit(fn)(*args))


@pytest.mark.parametrize("name", LINALG)
def test_linear_algebra_on_a_mesh(name: str):
    fn, args = LINALG[name]
    compiled = weft.compile(fn, *args, mesh=MESH, in_shardings=split_first(args))
    assert_same(compiled(*args), jax.jit(fn)(*args), length=4000)


# Any function, on any mesh, split in any way

MESHES = (Mesh(a=2, b=2), Mesh(a=3, b=2), Mesh(a=4), Mesh(a=2, b=3, c=2), Mesh(a=1, b=4))
EVERY = {**CASES, **{f"random {n}": c for n, c in RANDOM.items()}, **LINALG}


@st.composite
def spelled(draw: st.DrawFn, rank: int, mesh: Mesh) -> P | None:
    """Axes for some of the dims, each used once; None, or open dims, for the others."""
    axes = draw(st.permutations([name for name, _ in mesh.axes]))
    dims: list[Any] = []
    for _ in range(rank):
        count = draw(st.sampled_from([0, 0, 1, 1, 2]))
        taken, axes = tuple(axes[:count]), axes[count:]
        dims.append(taken or draw(st.sampled_from([None, ...])))
    return draw(st.sampled_from([P(*dims), None]))


@settings(max_examples=30)
@given(
    st.sampled_from(sorted(EVERY)), st.sampled_from(MESHES), st.sampled_from([0, 1, 2]), st.data()
)
def test_any_mesh_and_any_shardings(name: str, mesh: Mesh, level: Any, data: st.DataObject):
    fn, args = EVERY[name]
    expected = jax.jit(fn)(*args)

    def split(tree: Any) -> Any:
        return jax.tree.map(lambda a: data.draw(spelled(np.ndim(a), mesh)), tree)

    options = {"in_shardings": split(args), "out_shardings": split(expected)}
    compiled = weft.compile(fn, *args, mesh=mesh, level=level, **options)
    assert_same(compiled(*args), expected, length=4000)


def test_without_a_mesh_there_is_one_device():
    compiled = weft.compile(jnp.sin, normal(4))
    x = normal(4)
    assert_same(compiled(x), jnp.sin(x))
    assert compiled.collectives() == []


def test_thousands_of_devices():
    x, w = normal(128, 64), normal(64, 64)
    compiled = weft.compile(
        lambda x, w: jax.nn.relu(x @ w).sum(0),
        x,
        w,
        mesh=Mesh(data=64, model=64),
        in_shardings=(P("data"), P(None, "model")),
    )
    assert_same(compiled(x, w), jax.nn.relu(x @ w).sum(0))


def test_shard_map_and_collectives():
    def fn(x):
        def body(a):
            return jax.lax.psum(a, "data") + jax.lax.axis_index("model")

        inner = jax.shard_map(body, in_specs=JaxP("data", "model"), out_specs=JaxP(None, "model"))
        return inner(x) * 2

    x = normal(4, 8)
    compiled = weft.compile(fn, x, mesh=MESH)
    assert_same(compiled(x), (x[:2] + x[2:] + np.arange(4, dtype=np.float32).repeat(2)) * 2)


def test_some_axes_of_a_mesh_in_a_shard_map():
    def fn(x, w):  # of JAX, even the body of the reduction holds a constraint here
        body = jax.shard_map(
            lambda a, b: jax.lax.psum(a @ b, "model"),
            in_specs=(JaxP(None, "model"), JaxP("model")),
            out_specs=JaxP(),
            axis_names={"model"},
        )
        return body(x, w) * 2

    x, w = normal(4, 8), normal(8, 6)
    for split in (None, (P("data"), None), (None, P(None, "data"))):
        compiled = weft.compile(fn, x, w, mesh=MESH, in_shardings=split)
        assert_same(compiled(x, w), x @ w * 2, length=8)


@pytest.mark.parametrize("split", [None, P("data"), P(None, ("data", "model"))], ids=repr)
def test_reductions_that_call_functions(split: P | None):
    def larger(a, b):
        return jnp.where(a > b, a, b)  # where is a function of its own

    def fn(x):
        inner = jax.jit(lambda v: jax.lax.reduce(v, -jnp.inf, larger, (1,)))
        columns = jax.lax.reduce(x, -jnp.inf, larger, (0,))
        windows = jax.lax.reduce_window(x, -jnp.inf, larger, (2, 3), (1, 3), "SAME")
        return inner(x), columns, windows

    x = normal(6, 9)
    compiled = weft.compile(fn, x, mesh=MESH, in_shardings=split)
    assert_same(compiled(x), jax.jit(fn)(x))


def test_constrain_pins_an_intermediate():
    def fn(x):
        return weft.constrain(x * 2, P("model", ...)) + 1

    x = normal(8, 4)
    assert "sdy.sharding_constraint" in weft.compile(fn, x, mesh=MESH).text("captured")
    compiled = weft.compile(fn, x, mesh=MESH)
    assert_same(compiled(x), x * 2 + 1)
    assert_same(fn(x), x * 2 + 1)  # by itself
    assert "constrain.py" not in compiled.text("captured", locations=True)


# Arguments and results


def test_pytrees_keywords_scalars_and_nothing():
    def fn(params, *, scale, bias=None):
        return {"y": params["w"] * scale, "bias": bias, "n": (params["n"] + 1,)}

    params = {"w": normal(4), "n": 3}
    compiled = weft.compile(fn, params, scale=2.0, mesh=MESH)
    made = compiled(params, scale=2.0)
    assert made["bias"] is None
    assert_same(made, jax.jit(fn)(params, scale=2.0))


def test_arrays_of_jax_come_in():
    x = jnp.arange(8.0)
    compiled = weft.compile(lambda x: x[::2], x, mesh=MESH, in_shardings=P("data"))
    assert_same(compiled(x), x[::2])


def test_types_alone_compile():
    compiled = weft.compile(lambda x: x + 1, jax.ShapeDtypeStruct((4,), "float32"), mesh=MESH)
    assert_same(compiled(np.zeros(4, np.float32)), np.ones(4, np.float32))


def test_arrays_of_weft_go_in_again():
    step = weft.compile(lambda x: x * 2, normal(8), mesh=MESH, in_shardings=P("data"))
    first = step(normal(8))
    assert isinstance(first, weft.Array)
    assert len(first.shards) == 8
    second = weft.compile(lambda x: x + 1, first)(first)  # the sharding comes along
    assert second.mesh == MESH
    assert_same(second.numpy(), first.numpy() + 1)
    assert_same(step(weft.put(np.ones(8, np.float32), P("model"), MESH)), jnp.full(8, 2.0))


def test_donated_arrays_are_gone():
    step = weft.compile(lambda x: x * 2, normal(8), mesh=MESH, donate_argnums=0)
    x = normal(8)
    first = step(x)
    assert_same(first, x * 2)  # numpy's memory is not taken
    second = step(first)
    with pytest.raises(WeftError, match="donated to a program"):
        np.asarray(first)
    assert_same(second, x * 4)


def test_what_is_given_may_be_changed_after_the_call():
    step = weft.compile(lambda x: jnp.sin(x) @ x, normal(300, 300))
    x = np.ones((300, 300), np.float32)
    made = [step(x) for _ in range(3)]
    x[:] = 0
    assert float(made[-1][0, 0]) > 200


def test_an_error_in_a_callback_is_raised_by_who_asks():
    def fail(v):
        raise ZeroDivisionError("on purpose")

    def fn(x):
        return jax.pure_callback(fail, x, x) + 1

    made = weft.compile(fn, np.float32(1), mesh=MESH)(np.float32(1))
    with pytest.raises(ZeroDivisionError, match="on purpose"):
        made.numpy()
    compiled = weft.compile(fn, np.float32(1), mesh=MESH, sync_every_op=True)
    with pytest.raises(ZeroDivisionError, match="on purpose"):
        compiled(np.float32(1))


def test_leaves_run_without_their_trees():
    params = {"w": normal(4), "n": 3}
    compiled = weft.compile(lambda p: {"y": p["w"] * p["n"]}, params)
    leaves = compiled.leaves(params)
    assert [leaf.dtype for leaf in leaves] == [np.int32, np.float32]
    (y,) = compiled.flat(leaves)
    assert_same(y, params["w"] * 3)


def test_sixty_four_bits():
    with jax.enable_x64(True):
        x = np.linspace(0, 1, 6)
        compiled = weft.compile(lambda x: x @ x, x, mesh=MESH, in_shardings=P("data"))
        assert_same(compiled(x), jnp.dot(x, x))


def test_gradients_of_integers_hold_nothing():
    fn = jax.grad(lambda n, x: (x * 2).sum() + n, argnums=(0, 1), allow_int=True)
    nothing, slope = weft.compile(fn, 3, normal(4), mesh=MESH)(3, normal(4))
    assert nothing.dtype == jax.dtypes.float0
    assert_same(slope, np.full(4, 2, np.float32))


# Programs are remembered


def test_it_compiles_again_for_other_shapes_types_and_static_arguments():
    traced = []

    def fn(x, n):
        traced.append((x.shape, str(x.dtype), n))
        return x * n

    compiled = weft.compile(fn, static_argnums=1)
    assert traced == []
    for x, n in ((normal(2), 3), (normal(3), 3), (normal(2), 4), (normal(2), 3)):
        assert_same(compiled(x, n), x * n)
    compiled(normal(2).astype(np.float16), 3)
    assert traced == [
        ((2,), "float32", 3),
        ((3,), "float32", 3),
        ((2,), "float32", 4),
        ((2,), "float16", 3),
    ]
    assert "3xf32" not in compiled.text("captured")  # the latest one


def test_a_function_of_any_arguments_waits_for_its_first_call():
    x = normal(4)
    total = weft.compile(lambda *args, **named: args[0] + named["y"], mesh=MESH)
    assert_same(total(x, y=x), x + x)
    scaled = weft.compile(lambda x=1.0, *, by=2.0: x * by, mesh=MESH)
    assert_same(scaled(x, by=3.0), x * 3)
    assert float(scaled()) == 2


def test_weak_types_are_types_of_their_own():
    compiled = weft.compile(lambda x, s: x * s)
    assert compiled(np.float16(2), 3.0).dtype == np.float16
    assert compiled(np.float16(2), np.float32(3)).dtype == np.float32


# Modules and StableHLO

TEXT = """
func.func @main(%x: tensor<8x4xf32>, %w: tensor<4x4xf32>) -> tensor<8x4xf32> {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
     : (tensor<8x4xf32>, tensor<4x4xf32>) -> tensor<8x4xf32>
  return %0 : tensor<8x4xf32>
}
"""


@pytest.mark.parametrize("form", ["text", "module", "path"])
def test_stablehlo_in_any_form(form: str, tmp_path: Path):
    (tmp_path / "p.mlir").write_text(TEXT)
    program = {"text": TEXT, "module": weft.parse(TEXT), "path": tmp_path / "p.mlir"}[form]
    compiled = weft.compile(
        program, mesh=MESH, in_shardings=(P("data"), P(None, "model")), out_shardings=P("data")
    )
    x, w = normal(8, 4), normal(4, 4)
    (y,) = compiled(x, w)
    assert_same(y, x @ w)
    assert [row.over for row in compiled.collectives()] == ["model"]


def test_a_module_on_a_mesh_of_its_own():
    text = 'sdy.mesh @m = <["a"=2, "b"=2]>\n' + TEXT.replace(
        "%x: tensor<8x4xf32>", '%x: tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@m, [{"a"}, {}]>}'
    )
    x, w = normal(8, 4), normal(4, 4)
    assert_same(weft.compile(text)(x, w)[0], x @ w)
    assert_same(weft.compile(text, mesh=Mesh(a=4, b=2))(x, w)[0], x @ w)


# What it became


def step(w, x):
    h = jax.nn.relu(x @ w["in"])
    return (h @ w["out"]).sum()


WEIGHTS = {"in": normal(8, 16), "out": normal(16, 4)}
SPLIT = ({"in": P(None, "model"), "out": P("model")}, P("data"))


def compiled_step(**options: Any) -> weft.Compiled:
    return weft.compile(step, WEIGHTS, normal(4, 8), mesh=MESH, in_shardings=SPLIT, **options)


def test_every_stage_can_be_read():
    compiled = compiled_step()
    texts = {s: compiled.text(s) for s in ("captured", "sharded", "partitioned", "optimized")}
    assert "tensor<8x16xf32>" in texts["captured"] and "all_reduce" not in texts["captured"]
    assert texts["sharded"].count("sdy.sharding") > texts["captured"].count("sdy.sharding")
    assert "all_reduce" in texts["partitioned"]
    assert compiled.text() == texts["optimized"]
    for text in texts.values():
        assert weft.parse(text).text() == text
    assert "test_compile.py" in compiled.text(locations=True)


def test_collectives_say_what_a_device_sends_and_why():
    (row,) = compiled_step().collectives()
    assert (row.name, row.over, row.devices) == ("stablehlo.all_reduce", "data model", 8)
    assert (row.bytes, row.count) == (2 * 7 / 8 * 4, 1)
    assert row.loc.describe().endswith('return (h @ w["out"]).sum()')


def test_memory_of_a_device():
    plan = compiled_step(donate_argnums=0).memory()
    assert plan.arguments == 4 * (8 * 4 + 4 * 4 + 2 * 8)
    assert plan.peak >= plan.arguments + plan.results


def test_levels_give_the_same_answer():
    x = normal(4, 8)
    for level in (0, 1, 2):
        assert_same(compiled_step(level=level)(WEIGHTS, x), step(WEIGHTS, x))


def test_the_trace_holds_every_stage(tmp_path, monkeypatch):
    monkeypatch.setenv("WEFT_TRACE", str(tmp_path))
    compiled_step()
    compiled_step()
    first, second = sorted(tmp_path.iterdir())
    assert (first.name, second.name) == ("0001-jit_step", "0002-jit_step")
    names = [f.name for f in sorted(first.glob("*.mlir"))]
    assert names[:3] == ["01-captured.mlir", "02-sharded.mlir", "03-partitioned.mlir"]
    assert names[3].startswith("04-optimized-")
    assert weft.parse(first / names[-1]).text() == compiled_step().text()


# Refusals, before anything runs


def small_machine() -> Any:
    return weft.machine.HOST.with_memory(256)


REFUSED = {
    "a mesh that does not match": lambda: weft.compile(
        'sdy.mesh @m = <["a"=2, "b"=2]>\n' + TEXT, mesh=Mesh(x=4)
    ),
    "no mesh at all": lambda: weft.compile(step, WEIGHTS, normal(4, 8), in_shardings=SPLIT),
    "a sharding of the wrong rank": lambda: weft.compile(
        step, WEIGHTS, normal(4, 8), mesh=MESH, in_shardings=(None, P(None, None, "data"))
    ),
    "an axis used twice": lambda: weft.compile(
        step, WEIGHTS, normal(4, 8), mesh=MESH, in_shardings=(None, P("data", "data"))
    ),
    "an unknown axis": lambda: weft.compile(
        step, WEIGHTS, normal(4, 8), mesh=MESH, in_shardings=({"in": P("x"), "out": None}, None)
    ),
    "too few shardings": lambda: weft.compile(
        step, WEIGHTS, normal(4, 8), mesh=MESH, in_shardings=(None,)
    ),
    "too few shardings for a module": lambda: weft.compile(TEXT, mesh=MESH, in_shardings=(P(),)),
    "no such mesh": lambda: weft.compile(step, WEIGHTS, normal(4, 8), mesh=8),
    "no such level": lambda: compiled_step(level=7),
    "no such machine": lambda: compiled_step(machine="h1000"),
    "no such stage": lambda: compiled_step().text("folded"),
    "nothing compiled": lambda: weft.compile(step).text(),
    "no such file": lambda: weft.compile("nowhere.mlir"),
    "constrain with an unknown axis": lambda: weft.compile(
        lambda x: weft.constrain(x, P("date")), normal(4), mesh=MESH
    ),
    "another number of arrays": lambda: weft.compile(TEXT)(normal(8, 4)),
    "an array of another shape": lambda: weft.compile(TEXT)(normal(8, 4), normal(4, 5)),
    "an array of another type": lambda: weft.compile(TEXT)(normal(8, 4), np.zeros((4, 4))),
}


def test_refusals(golden):
    lines = []
    for name, attempt in REFUSED.items():
        with pytest.raises(WeftError) as caught:
            attempt()
        text = re.sub(r"--> \S*(test_compile.py):\d+", r"--> \1", str(caught.value))
        lines.append(f"# {name}\n{text}\n")
    golden(GOLDEN / "refusals.txt", "\n".join(lines))


def test_a_program_that_does_not_fit_names_its_largest_values():
    with pytest.raises(WeftError, match="needs .* on every device") as caught:
        compiled_step(machine=small_machine())
    assert "but host has 256 B" in caught.value.message
