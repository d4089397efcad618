"""Candidate changes and warnings: what they name can be written, and there."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AbstractMesh, PartitionSpec

import weft
from tests.explain.planted import types
from tests.tolerance import assert_close
from weft import Mesh, P
from weft.advise import Explained, explain
from weft.capture import capture, normalize
from weft.evaluate import evaluate
from weft.explain.candidates import candidate_edits
from weft.explain.edits import AnnotationEdit
from weft.explain.merged_rounds import fewer_rounds
from weft.ir.module import Module
from weft.machine import machine
from weft.predict import predict
from weft.shard import shard

H100 = machine("8xh100")
F32, BF16 = jnp.float32, jnp.bfloat16


def module_of(fn: Any, arguments: Any, mesh: Mesh, shardings: Any, results: Any = None) -> Module:
    made = capture(fn, arguments, mesh=mesh, in_shardings=shardings, out_shardings=results)
    return normalize(made.module, shard)


def edits_of(module: Module) -> list[AnnotationEdit]:
    lines = dict.fromkeys(node.loc.line for node in module.nodes())
    return [*candidate_edits(module, [line for line in lines if line])]


def warnings_of(found: Explained, kind: str) -> list[str]:
    return [finding.text for finding in found.findings if finding.kind == kind]


def seconds(module: Module) -> float:
    return predict(module, H100, whole=True, apart=True).seconds


def test_names_of_groups_tell_them_apart():
    def scaled(m: Any) -> Any:
        return jax.tree.map(lambda x: 2 * x, m)

    wide, tall = types((8, 64), (64, 8))
    module = module_of(scaled, ([(wide, tall)] * 2,), Mesh(x=8), (P(),))
    texts = [edit.text for edit in edits_of(module) if edit.kind == "argument"]
    assert 'in_shardings: m[*][0]: P("x", None)' in texts
    assert 'in_shardings: m[*][1]: P("x", None)' in texts
    # One of a pattern's arguments is split otherwise: the others are named one by one.
    shardings = ([(P("x"), P()), (P(), P()), (P(), P())],)
    module = module_of(scaled, ([(wide, tall)] * 3,), Mesh(x=8), shardings)
    texts = [edit.text for edit in edits_of(module)]
    assert 'in_shardings: m[1][0], m[2][0]: P("x", None)' in texts


def test_state_may_be_split_as_its_weights():
    def step(w: Any, m: Any) -> Any:
        return w, jax.tree.map(lambda m, w: 0.9 * m + w, m, w)

    wide, tall = types((8, 64), (64, 8))
    split = {"a": P(None, "x"), "b": P("x")}
    module = module_of(step, ({"a": wide, "b": tall},) * 2, Mesh(x=8), (split, P()))
    texts = [edit.text for edit in edits_of(module)]
    lines = ("in_shardings: m['a']: P(None, \"x\")", "in_shardings: m['b']: P(\"x\", None)")
    assert "\n     ".join(lines) in texts


def summed(count: int) -> Module:
    """A gradient that is summed over devices so often."""

    def local(w: Any, x: Any) -> Any:
        g = x.T @ jnp.tanh(x @ w)
        for _ in range(count):
            g = lax.psum(g, "x") / 4
        return w - g

    specs = PartitionSpec(), PartitionSpec("x")
    step = jax.shard_map(
        local, mesh=AbstractMesh((4, 2), ("x", "y")), in_specs=specs, out_specs=specs[0],
        axis_names={"x"}, check_vma=False,
    )  # fmt: skip
    arguments = tuple(types((256, 256), (512, 256), dtype=F32))
    return module_of(step, arguments, Mesh(x=4, y=2), (P(None, "y"), P("x")))


def test_manual_axes_are_not_constrained():
    added = [edit.text for edit in edits_of(summed(1)) if edit.kind == "addition"]
    assert any('P("y", None)' in text for text in added)
    assert not any('"x"' in text for text in added)


def test_what_is_summed_twice_is_named():
    for count in (1, 2):
        found = explain(summed(count), H100, tries=0)
        assert len(warnings_of(found, "summed twice")) == count - 1


def test_state_is_returned_as_it_came():
    """A cache that comes back with another dim split is sent in every step."""

    def decode(cache: Any, x: Any, at: Any) -> Any:
        cache = lax.dynamic_update_slice(cache, x[:, None], (0, at, 0, 0))
        return jnp.einsum("bhf,blhf->bhl", x, cache), cache

    arguments = (*types((8, 2048, 16, 64), (8, 16, 64)), jax.ShapeDtypeStruct((), jnp.int32))
    heads, length = P(None, None, "x"), P(None, "x")
    module = module_of(
        decode, arguments, Mesh(x=8), (heads, P(None, "x"), P()), (P(None, "x"), length)
    )
    (edit,) = [edit for edit in edits_of(module) if edit.kind == "state"]
    assert edit.text.startswith('out_shardings: result[1]: P(None, None, "x", None), as the arg')
    assert seconds(edit.apply(module)) < seconds(module)
    found = explain(module, H100, tries=8)
    assert found.advice[0].text == edit.text


def test_wide_partial_sums_may_be_narrow():
    def layer(x: Any, w: Any) -> Any:
        return jnp.dot(x, w, preferred_element_type=F32).astype(BF16)

    arguments = tuple(types((4096, 4096), (4096, 4096)))
    module = module_of(layer, arguments, Mesh(x=8), (P(None, "x"), P("x")), P())
    (edit,) = [edit for edit in edits_of(module) if edit.kind == "width"]
    assert "make the dot_general 4096x4096 at test_candidates.py" in edit.text
    narrow = edit.apply(module)
    assert seconds(narrow) < 0.7 * seconds(module)
    assert not any(node.op.name == "stablehlo.convert" for node in narrow.nodes())


def test_constraints_name_the_expression():
    def loss(w: Any, x: Any) -> Any:
        return jnp.sum(jnp.tanh(x @ w) ** 2)

    arguments = tuple(types((256, 256), (512, 256), dtype=F32))
    module = module_of(jax.grad(loss), arguments, Mesh(x=8), (P(), P()))
    texts = [edit.text for edit in edits_of(module) if edit.kind == "addition"]
    assert any(
        text.startswith('weft.constrain(x @ w, P("x", None)) at test_cand') for text in texts
    )
    assert any(" on the dot_general 256x256 in the gradient at test_cand" in text for text in texts)


def micro_batches(carried: bool) -> Module:
    """Gradients of micro-batches; or a recurrence, whose rounds need each other."""

    def step(w: Any, xs: Any) -> Any:
        def body(total: Any, x: Any) -> Any:
            if carried:
                return jnp.tanh(total @ w), ()
            return total + jax.grad(lambda w: jnp.sum(jnp.tanh(x @ w) ** 2))(w), ()

        return lax.scan(body, jnp.zeros_like(w), xs)[0]

    arguments = tuple(types((512, 512), (16, 256, 512)))
    return module_of(step, arguments, Mesh(x=8), (P(None, "x"), P(None, None, "x")))


@pytest.mark.parametrize("carried", [True, False])
def test_small_micro_batches_are_named(carried: bool):
    texts = warnings_of(explain(micro_batches(carried), H100, tries=0), "micro-batches")
    assert len(texts) == (not carried)
    assert all("the 16 rounds of this loop only add up" in text for text in texts)


def test_fewer_micro_batches_of_a_scan_are_tried():
    """The figure is what the same program with larger batches takes, or more."""

    def step(w: Any, xs: Any) -> Any:
        def body(total: Any, x: Any) -> Any:
            grads = jax.grad(lambda w: jnp.sum(jnp.tanh(x @ w) ** 2))(w)
            return jnp.add(total, grads), jnp.sum(x)

        return lax.scan(body, jnp.zeros_like(w), xs)

    def of_rounds(count: int) -> Module:
        arguments = tuple(types((2048, 2048), (count, 4096 // count, 2048)))
        return module_of(step, arguments, Mesh(x=8), (P("x"), P(None, "x")))

    found = explain(of_rounds(16), H100, tries=1)
    (first, *_) = found.advice
    assert first.kind == "rounds" and first.text.startswith("micro-batches: 2 instead of 16 rounds")
    assert "test_candidates.py" in first.text and not warnings_of(found, "micro-batches")
    assert predict(of_rounds(2), H100).seconds <= first.after < 0.7 * first.before
    numbers = np.random.default_rng(0)
    small = module_of(step, tuple(types((8, 8), (16, 8, 8), dtype=F32)), Mesh(x=2), (P(), P()))
    given = [numbers.standard_normal(shape, np.float32) for shape in ((8, 8), (16, 8, 8))]
    merged = [module for _, module in fewer_rounds(small)]
    assert len(merged) == 3
    for module in merged:
        for one, other in zip(evaluate(small, *given), evaluate(module, *given), strict=True):
            assert_close(one, other, length=1024)


def test_of_equally_fast_changes_the_one_that_takes_less_memory():
    """An average of split weights is whole: splitting it, or joining them, saves one gather."""

    def step(params: Any, mean: Any, grads: Any) -> Any:
        params = jax.tree.map(lambda p, g: p - 1e-3 * g, params, grads)
        return params, jax.tree.map(lambda m, p: 0.99 * m + 0.01 * p, mean, params)

    first, second = types((8192, 4096), (4096, 8192))
    weights, whole, split = (first, second), (P(), P()), (P("x"), P("x"))
    shardings, results = (split, whole, split), (split, whole)
    module = module_of(step, (weights,) * 3, Mesh(x=8), shardings, results)
    found = explain(module, H100, tries=12).advice
    assert all("mean" in piece.text and '"x"' in piece.text for piece in found[:2]), found
    assert found[1].memory_after < found[0].memory_before


def test_fewer_micro_batches_of_a_training_step_are_tried():
    torch = pytest.importorskip("torch")

    def step_of(accumulate: int) -> weft.Compiled:
        model = torch.nn.Linear(64, 64)
        step = weft.train_step(
            model, torch.nn.functional.mse_loss, torch.optim.SGD(model.parameters()),
            mesh=Mesh(x=8), plan={"weight": P("x"), "input": P("x"), "target": P("x")},
            accumulate=accumulate,
        )  # fmt: skip
        step.prepare(torch.empty(64, 64), torch.empty(64, 64))
        return step

    first = step_of(2).explain("8xh100", tries=1).advice[0]
    assert first.text == "weft.train_step(..., accumulate=1)" and first.after < first.before
    module = step_of(1).program.stages["captured"]
    texts = [edit.text for edit in edits_of(module) if edit.kind == "argument"]
    assert 'plan: "weight": P(None, "x")' in texts
    assert step_of(1).predict("8xh100").seconds == pytest.approx(first.after)
