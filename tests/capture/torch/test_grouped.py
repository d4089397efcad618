"""Mixtures of experts: grouped products as ragged dots, their gradients, and expert parallelism."""

from __future__ import annotations

import copy

import numpy as np

import weft
from tests.capture.torch.models import torch
from tests.capture.torch.test_ready_plans import planned
from tests.tolerance import assert_close
from weft import Mesh, P
from weft.evaluate import evaluate

mse_loss = torch.nn.functional.mse_loss


class Experts(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up = torch.nn.Parameter(torch.randn(4, 16, 32).bfloat16())
        self.bias = torch.nn.Parameter(torch.randn(4, 32))

    def forward(self, x, chosen):
        order = chosen.argsort(stable=True)
        counts = torch.histc(chosen[order].float(), bins=4, min=0, max=3)
        ends = counts.cumsum(0).to(torch.int32)
        made = torch._grouped_mm(x[order].bfloat16(), self.up, offs=ends).float()
        return (made + self.bias[chosen[order]])[order.argsort()]


class Mixture(torch.nn.Module):
    """A router that takes the best expert, and the experts, as transformers computes them."""

    def __init__(self):
        super().__init__()
        self.router = torch.nn.Parameter(torch.randn(16, 4))
        self.experts = Experts()

    def forward(self, x):
        share, chosen = torch.softmax(x @ self.router, -1).max(-1)
        return self.experts(x, chosen) * share[:, None]


def test_a_mixture_equals_eager_with_its_experts_on_four_devices():
    torch.manual_seed(0)
    model, x = Mixture(), torch.randn(24, 16)
    for how in ({}, {"mesh": Mesh(ep=4)}, {"mesh": Mesh(data=2, expert=2), "plan": "ep"}):
        compiled = weft.compile(model, x, **how)
        assert "chlo.ragged_dot" in compiled.text("captured")
        assert_close(compiled(x).numpy(), model(x).detach().numpy(), 64, least=1e-2)


def test_gradients_of_grouped_products_equal_eager():
    torch.manual_seed(0)
    model, x, y = Mixture(), torch.randn(24, 16), torch.zeros(24, 32)
    other = copy.deepcopy(model)
    rate = torch.optim.SGD(model.parameters(), lr=1.0)
    step = weft.train_step(model, mse_loss, rate, mesh=Mesh(ep=4), plan="ep")
    loss = step(x, y)
    wanted = mse_loss(other(x), y)
    wanted.backward()
    assert_close(loss.detach().numpy(), wanted.detach().numpy(), 768, least=1e-2)
    for mine, theirs in zip(model.parameters(), other.parameters(), strict=True):
        moved = (theirs - theirs.grad).detach().float()
        assert_close(mine.detach().float().numpy(), moved.numpy(), 768, least=1e-1)


def test_integers_are_counted_as_on_devices_other_than_the_cpu():
    x = np.random.default_rng(0).integers(0, 8, 100, np.int32)
    with torch.device("meta"):
        example = torch.zeros(100, dtype=torch.int32)
    compiled = weft.compile(lambda x: torch.histc(x, bins=8, min=0, max=7), example)
    (found,) = evaluate(compiled.program.stages["captured"], x)
    assert found.tolist() == np.bincount(x, minlength=8).tolist()


def test_experts_are_split_by_their_weights_and_biases_alone():
    found = planned("ep", Mesh(data=2, ep=4), Mixture())
    assert found["experts.up"] == P("ep", None, None, priorities=(0, 0, 0))
    assert found["experts.bias"] == P("ep", None, priorities=(0, 0))
    assert not any(dim.axes for dim in found["router"].dims)
