"""`weft.constrain` with parts of axes, priorities and partial sums, in JAX and PyTorch."""

from __future__ import annotations

import copy
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import weft
from tests.capture.torch.models import torch
from tests.tolerance import assert_close
from weft import Mesh, P, WeftError

MESH = Mesh(data=2, model=4)
FINE = P("data", ("model:(1)2", ...), priorities=(0, 1))
PARTIAL = P("data", None, unreduced=("model",))
TEXTS = (
    '[{"data"}p0, {"model":(1)2, ?}p1]',
    '[{"data"}, {}], unreduced={"model"}',
    '[{"data"}, {}], replicated={"model"}',
)
rng = np.random.default_rng(0)
X, W = (rng.standard_normal(s).astype(np.float32) for s in ((8, 16), (16, 32)))


@pytest.fixture(autouse=True)
def quiet():
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "weft.constrain")  # in eager mode it has no effect
        yield


def body(x, w, tanh):
    h = weft.constrain(tanh(x @ w), FINE)
    y = weft.constrain(h @ w.T, PARTIAL)
    return weft.constrain(y, P("data", replicated=("model",))).sum()


def test_jax_takes_every_sharding_and_differentiates():
    step = jax.value_and_grad(lambda x, w: body(x, w, jnp.tanh), argnums=1)
    compiled = weft.compile(step, X, W, mesh=MESH, in_shardings=(None, P(None, "model")))
    text = compiled.text("captured")
    assert all(part in text for part in TEXTS)
    assert text.count("sharding_constraint") == 6  # each, and its cotangent
    assert text.count("unreduced") == 1  # a cotangent is whole
    for made, wanted in zip(compiled(X, W), step(X, W), strict=True):
        assert_close(np.asarray(made), np.asarray(wanted), 512, least=1e-3)


def test_jax_batches_a_constraint_with_an_open_dim():
    def fn(x):
        return jax.vmap(lambda row: weft.constrain(row * 2, P("model:(2)2")), 1, 1)(x)

    text = weft.compile(fn, X, mesh=MESH).text("captured")
    assert '[{"model":(2)2}, {?}]' in text


def test_jax_refuses_parts_of_axes_that_shard_map_splits_by():
    axes = (jax.sharding.AxisType.Auto,) * 2
    mesh = jax.sharding.AbstractMesh((2, 4), ("data", "model"), axis_types=axes)

    def fn(part):
        def split(x):
            return weft.constrain(x, part)

        spec = jax.sharding.PartitionSpec("data")
        return jax.shard_map(split, mesh=mesh, in_specs=spec, out_specs=spec, axis_names={"data"})

    compiled = weft.compile(fn(P(None, "model:(1)2")), X, mesh=mesh)
    np.testing.assert_array_equal(np.asarray(compiled(X)), X)
    with pytest.raises(WeftError, match="names 'data', an axis of type Manual"):
        weft.compile(fn(P("data", None, replicated=("model",))), X, mesh=mesh)


def test_a_compiled_function_keeps_parts_of_axes_inside_another():
    inner = weft.compile(lambda x: x + 1, mesh=MESH, in_shardings=P("model:(1)2"))
    text = weft.compile(lambda x: inner(x * 2), X, mesh=MESH).text("captured")
    assert '[{"model":(1)2}, {}]' in text


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.w = torch.nn.Parameter(torch.from_numpy(W.copy()))

    def forward(self, x):
        return body(x, self.w, torch.tanh)


def test_torch_keeps_constraints_through_export():
    model, x = Model(), torch.from_numpy(X)
    compiled = weft.compile(model, x, mesh=MESH, plan={"w": P(None, "model")})
    text = compiled.text("captured", locations=True)
    assert all(part in text for part in TEXTS)
    lines = [line for line in text.splitlines() if "sharding_constraint" in line]
    assert len(lines) == 3 and all("test_constrain.py" in line for line in lines)
    assert_close(compiled(x).numpy(), model(x).detach().numpy(), 512, least=1e-3)


def test_torch_keeps_constraints_in_gradients():
    model = Model()
    eager, x = copy.deepcopy(model), torch.from_numpy(X)
    step = weft.train_step(
        model, lambda module, x: module(x), torch.optim.SGD(model.parameters(), lr=0.1), mesh=MESH
    )
    step(x)
    assert step.text("captured").count("sharding_constraint") == 6
    eager(x).backward()
    wanted = eager.w - 0.1 * eager.w.grad
    assert_close(model.w.detach().numpy(), wanted.detach().numpy(), 512, least=1e-3)


def test_torch_compile_keeps_constraints():
    model, x = Model(), torch.from_numpy(X)
    fast = torch.compile(model, backend="weft", options={"mesh": MESH}, fullgraph=True)
    loss = fast(x)
    loss.backward()
    got, model.w.grad = model.w.grad, None
    wanted = model(x)
    wanted.backward()
    assert_close(loss.detach().numpy(), wanted.detach().numpy(), 512, least=1e-3)
    assert_close(got.numpy(), model.w.grad.numpy(), 512, least=1e-3)


def test_a_module_is_constrained_by_hooks_until_they_are_removed():
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 16))
    x = torch.from_numpy(X)
    first = weft.constrain(model[0], P("data", "model"), inputs=P("data"))
    whole = weft.constrain(model, P(None, "model"))
    text = weft.compile(model, x, mesh=MESH, plan={}).text("captured", locations=True)
    lines = [line for line in text.splitlines() if "sharding_constraint" in line]
    assert ['"0/weft.constrain' in line for line in lines] == [True, True, False]
    first.remove()
    whole.remove()
    assert "sharding_constraint" not in weft.compile(model, x, mesh=MESH).text("captured")


def test_an_axis_that_the_mesh_lacks_is_refused_at_the_line():
    def fn(x):
        return weft.constrain(x * 2, P("modle:(1)2"))  # the line

    for x in (X, torch.from_numpy(X)):
        with pytest.raises(WeftError, match="no axis 'modle'") as caught:
            weft.compile(fn, x, mesh=MESH)
        assert "# the line" in str(caught.value) and "did you mean 'model'" in caught.value.help


def test_torch_without_a_mesh_says_that_it_has_no_effect():
    x = torch.from_numpy(X)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(weft.errors.WeftWarning, match="has no effect"):
            weft.constrain(x, P("data"))
        with pytest.raises(weft.errors.WeftWarning, match="has no effect"):
            weft.compile(lambda x: weft.constrain(x, P("data")), x)
        assert weft.constrain(x, P(None, ...)) is x


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (lambda: weft.constrain(torch.ones(2), P(None, None)), "is for 2 dims"),
        (lambda: weft.constrain(torch.nn.Linear(2, 2)), "no sharding for the module"),
        (lambda: weft.constrain(X, P(), inputs=P()), "is not a module"),
        (lambda: weft.constrain({"a": torch.ones(2)}, {"b": P()}), "does not fit"),
    ],
)
def test_what_does_not_fit_is_refused(given, message):
    with pytest.raises(WeftError, match=message):
        given()
