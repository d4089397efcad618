"""The search for sharding plans: layers, facts, plans that fit and run; files and exports."""

from __future__ import annotations

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import weft
from tests.plan.compared import MACHINES, RECIPES, compare, difference, run_tiny
from tests.plan.models import SIZES, program
from weft import P
from weft.capture import capture, normalize
from weft.errors import WeftError
from weft.evaluate import evaluate
from weft.ir.verify import verify
from weft.machine import machine
from weft.mesh.plans import ShardingPlan, read_plan
from weft.optimize.inline_calls import inline_calls
from weft.planner.candidates import candidates, spec_of
from weft.planner.explained import patterns
from weft.planner.repeats import layer_parameters, repeated_layers, shorten
from weft.planner.search import plan_captured, subject_of
from weft.shard import shard

KINDS = tuple(SIZES)


def flat(fn, args):
    captured = capture(fn, args)
    return inline_calls(normalize(captured.module, shard)), captured


def layered(weights, x):
    for w in weights:
        x = jnp.tanh(x @ w["a"]) @ w["b"] + x
    return jnp.sum(x * x)


def grads(weights, x):
    value, slopes = jax.value_and_grad(layered)(weights, x)
    return jax.tree.map(lambda w, g: w - 0.1 * g, weights, slopes), value


def layered_args(count, dtype=np.float32):
    random = np.random.default_rng(0)
    draw = lambda *shape: random.standard_normal(shape).astype(dtype)  # noqa: E731
    return [{"a": draw(4, 6), "b": draw(6, 4)} for _ in range(count)], draw(3, 4)


# Layers


def test_layer_parameters_by_name():
    names = ["embed", "layers[0].w1", "layers[1].w1", "layers[2].w1", "norm1", "x[0]", "x[2]"]
    assert layer_parameters(names) == [[1, 2, 3]]
    assert layer_parameters(["a.0.b.0", "a.1.b.0", "a.2.b.0", "a.0.b.1", "a.1.b.1", "a.2.b.1"]) == [
        [0, 1, 2],
        [3, 4, 5],
    ]
    assert layer_parameters(["w", "x"]) == []


@pytest.mark.parametrize("keep", [1, 2, 4])
@pytest.mark.parametrize("fn", [layered, grads])
def test_a_shortened_program_is_the_program_with_fewer_layers(fn, keep):
    module, captured = flat(fn, layered_args(5))
    found = repeated_layers(module.function("main"), [leaf.name for leaf in captured.arguments])
    assert found is not None and found.count == 5
    made = shorten(module, found, keep)
    verify(made.module)
    weights, x = layered_args(5)
    got = evaluate(made.module, *jax.tree.leaves((weights[:keep], x)))
    want = jax.tree.leaves(jax.jit(fn)(weights[:keep], x))
    assert len(got) == len(want)
    for one, other in zip(got, want, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


def test_layers_that_differ_are_not_repeated():
    def odd(weights, x):
        for n, w in enumerate(weights):
            x = (jnp.tanh if n % 2 else jnp.sin)(x @ w["a"]) @ w["b"]
        return x

    module, captured = flat(odd, layered_args(4))
    found = repeated_layers(module.function("main"), [leaf.name for leaf in captured.arguments])
    made = None if found is None else shorten(module, found, 1)
    if made is not None:  # then it computes what one layer does
        weights, x = layered_args(4)
        got = evaluate(made.module, *jax.tree.leaves((weights[:1], x)))
        np.testing.assert_allclose(got[0], odd(weights[:1], x), rtol=1e-5)


@pytest.fixture(scope="module")
def llama():
    fn, types = program("llama", SIZES["llama"].tiny(3))
    captured = capture(fn, types)
    return captured, subject_of(captured)


def test_the_facts_of_a_training_step(llama):
    captured, subject = llama
    facts = subject.facts
    assert facts.layers == 3 and len(subject.short) == 2
    roles = {a.name: a.role for a in facts.arguments}
    assert roles["weights['layers'][0]['q']"] == "weight" and roles["tokens"] == "batch"
    assert roles["state['first']['layers'][0]['q']"] == "optimizer"
    by_name = {a.name: dict(enumerate(a.classes)) for a in facts.arguments}
    layer = {n: by_name[f"weights['layers'][0]['{n}']"] for n in ("q", "k", "o", "gate", "down")}
    heads, hidden = layer["q"][1], layer["gate"][1]
    assert layer["k"][1] == heads == layer["o"][0] and layer["down"][0] == hidden != heads
    assert len(subject.state) == len(captured.arguments) - 2


def test_every_candidate_divides(llama):
    facts = llama[1].facts
    seen = 0
    for candidate in candidates(facts, 8):
        assert candidate.devices == 8
        seen += 1
        if seen % 17 == 0:
            for argument in facts.arguments:
                spec = spec_of(argument, candidate)
                for size, dim in zip(argument.type.bounds, spec.dims, strict=False):
                    pieces = int(np.prod([candidate.sizes[a.name] for a in dim.axes]))
                    assert size % pieces == 0
    assert seen > 100


# Plans


def adam(weights, moments, x):
    value, slopes = jax.value_and_grad(layered)(weights, x)
    moments = jax.tree.map(lambda m, g: 0.9 * m + g, moments, slopes)
    return jax.tree.map(lambda w, m: w - 0.1 * m, weights, moments), moments, value


def adam_args():
    random = np.random.default_rng(0)
    draw = lambda *shape: (0.1 * random.standard_normal(shape)).astype(np.float32)  # noqa: E731
    weights = [{"a": draw(64, 256), "b": draw(256, 64)} for _ in range(4)]
    return weights, jax.tree.map(np.zeros_like, weights), draw(32, 64)


@pytest.fixture(scope="module")
def plans():
    steps = []

    def progress(what, done, total):
        steps.append((what, done, total))

    found = plan_captured(
        capture(adam, adam_args()), machine("8xh100"), 8, tries=3, progress=progress
    )
    assert steps[0] == ("reading the program", 0, 1)
    assert steps[-1] == ("simulating candidates", 3, 3)
    return found


def test_plans_are_ordered_fit_and_say_why(plans):
    assert len(plans) == 3 and plans[0].seconds <= plans[1].seconds <= plans[2].seconds
    assert all(p.memory <= p.limit and p.mesh.size == 8 for p in plans)
    assert "fastest" in plans[0].about[-1] and "slower than the best" in plans[1].about[-1]
    assert any("*" in name for name in plans[0].arguments)


def test_plans_run_in_lockstep(plans, tmp_path):
    args = adam_args()
    want = jax.jit(adam)(*args)
    for plan in plans:
        plan.save(tmp_path / "plan.json")
        assert read_plan(tmp_path / "plan.json") == plan
        made = weft.compile(adam, *args, plan=tmp_path / "plan.json")
        assert difference(want, made(*args)) < 1e-4


def test_compile_takes_the_file(tmp_path):
    path = tmp_path / "plan.json"
    ShardingPlan(weft.Mesh(data=2), {"x": P("data")}, {"result": P("data")}).save(path)
    made = weft.compile(lambda x: x * 2, np.ones((4, 2), np.float32), plan=str(path))
    assert made.signature.mesh == weft.Mesh(data=2)
    assert made(np.ones((4, 2), np.float32)).addressable_shards[1].data.shape == (2, 2)


def test_no_plan_fits():
    fn, types = adam, adam_args()
    small = machine("8xh100").with_memory(1 << 12)
    with pytest.raises(WeftError, match="no plan fits: the least needs"):
        weft.plan(fn, *types, machine=small, tries=1)


def test_a_batch_that_does_not_divide():
    with pytest.raises(WeftError, match="no plan for 8 devices"):
        weft.plan(lambda w, x: (w - x.sum() * w, x.sum()), np.ones(3), np.ones((5, 3)),
                  machine="8xh100")  # fmt: skip


def test_the_number_of_devices_is_needed():
    with pytest.raises(WeftError, match="any number of devices"):
        weft.plan(lambda x: x, np.ones(3), machine="h100")


# Files and exports

SPECS = st.lists(st.sampled_from([None, "data", "model", ("data", "model")]), max_size=3).filter(
    lambda dims: sum(("data" in (d or "")) for d in dims) < 2
)


@settings(max_examples=20)
@given(st.dictionaries(st.text(min_size=1, max_size=12), SPECS, max_size=4), st.integers(0, 2))
def test_a_plan_is_read_as_it_was_written(specs, priority):
    import tempfile

    named = {
        n: P(*d, priorities=[priority] * len(d)) if priority else P(*d) for n, d in specs.items()
    }
    plan = ShardingPlan(weft.Mesh(data=2, model=4), named, {}, about=("a",), parts={"x": 1.5})
    with tempfile.TemporaryDirectory() as folder:
        plan.save(f"{folder}/p.json")
        again = read_plan(f"{folder}/p.json")
    assert again.mesh == plan.mesh and again.about == plan.about
    assert {n: repr(s) for n, s in again.arguments.items()} == {
        n: repr(s) for n, s in named.items()
    }


@pytest.mark.parametrize(
    ("text", "error"),
    [("{", "is not JSON"), ("[]", "not a sharding plan"), ('{"weft plan": 1}', "malformed")],
)
def test_files_that_are_no_plans(tmp_path, text, error):
    (tmp_path / "p.json").write_text(text)
    with pytest.raises(WeftError, match=error):
        read_plan(tmp_path / "p.json")


def test_exports():
    mesh = weft.Mesh(fsdp=2, model=4)
    jax_plan = ShardingPlan(mesh, {"w['a']": P(None, ("fsdp", "model"))}, {"result[0]": P("model")})
    space: dict = {}
    exec(compile(jax_plan.export("jax").replace("jax.make_mesh", "tuple_of"), "plan", "exec"),
         {"tuple_of": lambda *a: a}, space)  # fmt: skip
    assert space["mesh"] == ((2, 4), ("fsdp", "model"))
    assert space["arguments"]["w['a']"] == jax.sharding.PartitionSpec(None, ("fsdp", "model"))
    assert space["results"]["result[0]"] == jax.sharding.PartitionSpec("model")
    weights = {
        "model.embed_tokens.weight": P("model"),
        "layers.*.q_proj.weight": P("model"),
        "layers.*.o_proj.weight": P(None, "model"),
        "layers.*.norm.weight": P(),
    }
    torch_plan = ShardingPlan(mesh, weights)
    exec(torch_plan.export("tp_plan"), space)
    assert space["tp_plan"] == {
        "model.embed_tokens": "embedding_rowwise",
        "layers.*.q_proj": "colwise",
        "layers.*.o_proj": "rowwise",
    }
    text = torch_plan.export("dtensor")
    compile(text, "plan", "exec")
    assert "'layers.*.q_proj': ColwiseParallel()" in text and "fully_shard" in text
    assert "'model.embed_tokens': RowwiseParallel(input_layouts=Replicate())" in text
    with pytest.raises(WeftError, match="unknown export"):
        torch_plan.export("onnx")
    with pytest.raises(WeftError, match="not of a PyTorch module"):
        jax_plan.export("tp_plan")


def test_styles_of_a_tp_plan_are_known_to_transformers():
    styles = pytest.importorskip("transformers.integrations.tensor_parallel").ALL_PARALLEL_STYLES
    table = ShardingPlan(weft.Mesh(model=2), {"wte.weight": P(None, "model")})
    weights = {"up.weight": P("model"), "down.weight": P(None, "model"), "out.weight": P("model")}
    space: dict = {}
    for plan in (table, ShardingPlan(weft.Mesh(model=2), weights | {"embed.weight": P("model")})):
        exec(plan.export("tp_plan"), space)
        for style in space["tp_plan"].values():
            assert style in [*styles], style


def test_recipes_name_every_argument():
    for kind in KINDS:
        fn, types = program(kind, SIZES[kind].tiny(1))
        captured = capture(fn, types)
        for path in RECIPES.glob(f"{kind}-*.json"):
            plan = read_plan(path)
            assert all(plan(leaf.name) is not None for leaf in captured.arguments)
            assert all(plan.result(leaf.name) is not None for leaf in captured.results[:-1])
            assert json.loads(path.read_text())["mesh"]


@pytest.mark.long
@pytest.mark.parametrize("devices", [*MACHINES])
@pytest.mark.parametrize("kind", KINDS)
def test_plans_are_as_good_as_published_ones(kind, devices):
    found = compare(kind, devices)
    assert found.best.seconds <= found.fastest_recipe()
    assert run_tiny(kind, found.best) < 0.02


def test_names_that_agree_but_for_numbers_share_a_pattern():
    specs = {
        "layers[0].q": P("model"), "layers[1].q": P("model"), "layers[10].o": P("model"),
        "layers[11].o": P(), "embed": P("data"), "norm1": P(),
    }  # fmt: skip
    assert patterns(specs, None) == {
        "layers[*].q": P("model"), "layers[10].o": P("model"), "layers[11].o": P(),
        "embed": P("data"), "norm1": P(),
    }  # fmt: skip


# Programs that train nothing, or not all


def residual(weights, x):
    for w in weights:
        x = x + jnp.tanh(x @ w["up"]) @ w["down"]
    return x


LAYER_TYPES = {
    "up": jax.ShapeDtypeStruct((64, 256), np.float32),
    "down": jax.ShapeDtypeStruct((256, 64), np.float32),
}


def roles_of(fn, *types):
    facts = subject_of(capture(fn, types)).facts
    return facts, {argument.name: argument.role for argument in facts.arguments}


def test_inference_has_weights_and_a_batch():
    rows = jax.ShapeDtypeStruct((16, 64), np.float32)
    facts, roles = roles_of(residual, [LAYER_TYPES] * 4, rows)
    assert roles.pop("x") == "batch" and {*roles.values()} == {"weight"} and not facts.trains
    assert all(c.shards_weights == ("fsdp" in c.sizes) for c in candidates(facts, 8))
    best = weft.plan(residual, [LAYER_TYPES] * 4, rows, machine="8xh100", tries=3)[0]
    assert best.mesh == weft.Mesh(data=8) and best.parts["collectives exposed"] == 0
    assert best.title in repr(best) and 'x  P("data")' in str(best)


def test_frozen_weights_are_weights():
    def step(trained, frozen, x):
        def loss(trained):
            return jnp.mean(residual(frozen, x @ trained["a"] @ trained["b"]) ** 2)

        return jax.tree.map(lambda w, g: w - 0.1 * g, trained, jax.grad(loss)(trained))

    adapter = {
        "a": jax.ShapeDtypeStruct((64, 4), np.float32),
        "b": jax.ShapeDtypeStruct((4, 64), np.float32),
    }
    rows = jax.ShapeDtypeStruct((16, 64), np.float32)
    facts, roles = roles_of(step, adapter, [LAYER_TYPES] * 4, rows)
    assert roles["x"] == "batch" and roles["frozen[0]['up']"] == "weight" and facts.trains
    updated = {a.name for a in facts.arguments if a.is_updated}
    assert updated == {"trained['a']", "trained['b']"}


def test_exports_of_layers_that_are_in_no_pair():
    """Rows before columns: PyTorch would take the whole input for a piece of it."""
    weights = {
        "up.weight": P(None, "model"),
        "down.weight": P("model"),
        "head.out.weight": P("model"),
    }
    plan = ShardingPlan(weft.Mesh(model=4), weights)
    space: dict = {}
    exec(plan.export("tp_plan"), space)
    assert space["tp_plan"] == {
        "up": "rowwise_rep",
        "down": "colwise_rep",
        "head.out": "colwise_rep",
    }
    text = plan.export("dtensor")
    assert "'up': RowwiseParallel(input_layouts=Replicate())" in text
    assert "'down': ColwiseParallel(output_layouts=Replicate())" in text
