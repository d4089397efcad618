"""Functions whose gradients a user has written, in training steps."""

from __future__ import annotations

import copy

import pytest

import weft
from tests.capture.torch.models import nn, torch


class Marked(torch.autograd.Function):
    """A product whose gradients are not those of its ops."""

    @staticmethod
    def forward(ctx, x, y, word):
        ctx.save_for_backward(x, y)
        ctx.word = word
        return x * y, x, word, (x + y).detach()

    @staticmethod
    def backward(ctx, product, same, _, sum_):
        x, y = ctx.saved_tensors
        return product * y * 5 + same, product * x * len(ctx.word), None


class Straight(torch.autograd.Function):
    """Rounding with half the gradient of the identity."""

    @staticmethod
    def forward(x):
        return torch.round(x)

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 0.5


class Doubled(torch.autograd.Function):
    """An update in place."""

    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 9


class Net(nn.Module):
    """A layer, and functions of its result."""

    def __init__(self, function):
        super().__init__()
        self.layer, self.scale = nn.Linear(3, 4), nn.Parameter(torch.randn(4))
        self.function = function

    def forward(self, x):
        return self.function(self.layer(x), self.scale).square().mean()


def marked(x, scale):
    product, same, word, rest = Marked.apply(x, scale, "four")
    assert word == "four"
    return product.sin() + same * 2 + rest


@pytest.mark.parametrize("parts", [1, 3])
def test_gradients_are_the_functions_own(parts):
    torch.manual_seed(0)
    net = Net(lambda x, scale: Straight.apply(marked(x, scale) * 3) + x)
    eager, x = copy.deepcopy(net), torch.randn(6, 3)
    theirs = torch.optim.SGD(eager.parameters(), lr=1.0)
    for part in x.chunk(parts):
        (eager(part) / parts).backward()
    theirs.step()
    step = weft.train_step(net, None, torch.optim.SGD(net.parameters(), lr=1.0), accumulate=parts)
    step(x)
    for mine, other in zip(net.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-4)


def test_a_function_that_updates_in_place_is_refused():
    net = Net(lambda x, scale: Doubled.apply(x * scale))
    step = weft.train_step(net, None, torch.optim.SGD(net.parameters(), lr=1.0))
    with pytest.raises(weft.WeftError, match=r"Doubled.forward changes[\s\S]*gradients.py"):
        step(torch.randn(2, 3))
