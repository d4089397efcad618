"""Products of matrices whose rows a view has merged: a batch that is not in front stays split."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import weft


class Projected(nn.Module):
    """A linear layer on sequence, batch and features, with its rows merged by hand or not."""

    def __init__(self, *, by_hand: bool, bias: bool):
        super().__init__()
        self.up = nn.Linear(12, 20, bias=bias)
        self.down = nn.Linear(20, 12, bias=bias)
        self.by_hand = by_hand

    def forward(self, x):
        x = x.transpose(0, 1)
        if not self.by_hand:
            return self.down(torch.tanh(self.up(x))).transpose(0, 1)
        y = self.up(x.reshape(-1, 12)).view(*x.shape[:2], 20)
        return self.down(torch.tanh(y).flatten(0, 1)).view(x.shape).transpose(0, 1)


@pytest.mark.parametrize(
    ("by_hand", "bias", "batch"),
    [(False, True, 8), (True, True, 8), (False, False, 8), (True, True, 1)],
    ids=["merged by torch", "merged by hand", "no bias", "batch of one"],
)
def test_a_batch_behind_the_sequence_sends_gradients_only(by_hand, bias, batch):
    torch.manual_seed(0)
    module, x = Projected(by_hand=by_hand, bias=bias), torch.randn(batch, 5, 12)
    expected = module(x)
    forward = weft.compile(module, x, mesh="data=4", plan={"x": weft.P("data")})
    torch.testing.assert_close(forward(x), expected)
    if batch > 1:
        assert not forward.collectives()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    grads = torch.autograd.grad(module(x).square().mean(), [*module.parameters()])
    stepped = [w.detach() - 0.1 * g for w, g in zip(module.parameters(), grads, strict=True)]
    step = weft.train_step(
        module,
        lambda out: out.square().mean(),
        optimizer,
        mesh="data=4",
        plan={"x": weft.P("data")},
    )
    step(x)
    for got, wanted in zip(module.parameters(), stepped, strict=True):
        torch.testing.assert_close(got.detach(), wanted)
    if batch > 1:
        assert {row.name for row in step.collectives()} == {"stablehlo.all_reduce"}


def test_attention_of_torch_sends_nothing_when_the_batch_is_split():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True).eval()
    x = torch.randn(8, 6, 16)
    compiled = weft.compile(layer, x, mesh="data=4", plan={"src": weft.P("data")})
    torch.testing.assert_close(compiled(x), layer(x))
    assert not compiled.collectives()


def test_products_of_empty_and_odd_views():
    def products(x, w):
        return x.reshape(-1, 6) @ w, x.reshape(3, -1) @ x.reshape(-1, 3), x[:0].reshape(0, 6) @ w

    x, w = torch.randn(3, 4, 6), torch.randn(6, 5)
    for got, wanted in zip(weft.compile(products, x, w)(x, w), products(x, w), strict=True):
        torch.testing.assert_close(got, wanted)


class SharedKeys(nn.Module):
    """Attention of two queries to each key."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = nn.Linear(16, 16), nn.Linear(16, 8), nn.Linear(16, 8)
        self.out = nn.Linear(16, 16)

    def forward(self, x):
        q, k, v = (p(x).unflatten(-1, (-1, 2)).transpose(1, 2) for p in (self.q, self.k, self.v))
        made = nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)
        return self.out(made.transpose(1, 2).flatten(2))


def test_heads_that_share_keys_stay_split_in_training():
    """Heads are not merged with the batch into one dim, whatever plan splits them."""
    torch.manual_seed(0)
    module, x = SharedKeys(), torch.randn(4, 8, 16)
    expected = module(x).square().mean()
    plan = {f"{name}.*": weft.P("heads") for name in "qkv"} | {"out.weight": weft.P(None, "heads")}
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    grads = torch.autograd.grad(expected, [*module.parameters()])
    stepped = [w.detach() - 0.1 * g for w, g in zip(module.parameters(), grads, strict=True)]
    step = weft.train_step(
        module, lambda out: out.square().mean(), optimizer, mesh="heads=4", plan=plan
    )
    torch.testing.assert_close(step(x), expected.detach())
    for got, wanted in zip(module.parameters(), stepped, strict=True):
        torch.testing.assert_close(got.detach(), wanted)
    assert [(row.name, row.count) for row in step.collectives()] == [("stablehlo.all_reduce", 1)]
