"""Activation checkpointing: equal numbers, less memory, on one device and on a mesh."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn, optim  # noqa: E402
from torch.nn import functional as F  # noqa: E402

import weft  # noqa: E402
from weft import Mesh  # noqa: E402

WIDTH = 16


class Block(nn.Module):
    """A residual block with wide values inside, of which dropout and statistics are two."""

    def __init__(self, dropped: float) -> None:
        super().__init__()
        self.norm, self.up = nn.BatchNorm1d(WIDTH), nn.Linear(WIDTH, 8 * WIDTH)
        self.down, self.drop = nn.Linear(8 * WIDTH, WIDTH), nn.Dropout(dropped)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Up and down; a buffer that is updated in place is read before."""
        scale = torch.cos(self.calls)
        self.calls += 1
        return x + self.down(self.drop(torch.tanh(F.gelu(self.up(self.norm(x)))))) * scale


class Blocks(nn.Module):
    """Blocks, the first of them called twice."""

    def __init__(self, dropped: float = 0.0, count: int = 4) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Block(dropped) for _ in range(count)])
        self.head = nn.Linear(WIDTH, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """All blocks."""
        for layer in (self.layers[0], *self.layers):
            x = layer(x)
        return self.head(x)


def stepped(dropped: float = 0.0, count: int = 4, **options: Any) -> tuple[Any, Any, Any]:
    """The step after two calls, its module, and its losses."""
    torch.manual_seed(0)
    net = Blocks(dropped, count)
    x, y = torch.randn(256, WIDTH), torch.randn(256, 1)
    momentum = optim.SGD(net.parameters(), lr=1e-2, momentum=0.9)
    step = weft.train_step(net, F.mse_loss, momentum, **options)
    return step, net, [step(x, y) for _ in range(2)]


def eager() -> tuple[Any, list[Any]]:
    torch.manual_seed(0)
    net, losses = Blocks(), []
    x, y = torch.randn(256, WIDTH), torch.randn(256, 1)
    momentum = optim.SGD(net.parameters(), lr=1e-2, momentum=0.9)
    for _ in range(2):
        momentum.zero_grad()
        losses.append(F.mse_loss(net(x), y))
        losses[-1].backward()
        momentum.step()
    return net, losses


@pytest.mark.parametrize("mesh", [None, Mesh(data=8)])
def test_memory_falls_and_numbers_stay(mesh: Any) -> None:
    given: dict[str, Any] = {"mesh": mesh, "plan": mesh and "fsdp"}
    plain, _, _ = stepped(**given)
    less, net, losses = stepped(checkpoint="layers.*", **given)
    twin, expected = eager()
    torch.testing.assert_close(losses, expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(net.state_dict(), twin.state_dict(), rtol=1e-3, atol=1e-4)
    part = 0.5 if mesh is None else 0.75  # weights that are gathered are temporaries, too
    assert less.memory().temporaries < part * plain.memory().temporaries
    assert less.memory().peak < plain.memory().peak
    gathers = [r.bytes for r in less.collectives() if "all_gather" in r.name]
    before = [r.bytes for r in plain.collectives() if "all_gather" in r.name]
    # Backward and recomputation gather a parameter once; only the order of layers may differ.
    assert sum(gathers) <= 1.2 * sum(before)


def test_the_same_random_numbers_and_parts_of_a_batch() -> None:
    """Dropout drops the same elements again, in each part of an accumulated batch."""
    made = [
        stepped(0.4, 1, accumulate=2, target="numpy", checkpoint=named)
        for named in ([], ["layers.*"])
    ]
    for _, net, losses in made[1:]:
        torch.testing.assert_close(losses, made[0][2])
        torch.testing.assert_close(net.state_dict(), made[0][1].state_dict())


def test_each_call_of_a_module_is_computed_again() -> None:
    """Once in each backward pass, with its inputs behind one barrier."""
    step, _, _ = stepped(count=1, target="numpy", checkpoint=["layers.*"], accumulate=2)
    text = step.text("captured")
    assert text.count("optimization_barrier") == text.count("tanh") / 2 == 2 * 2


def test_refusals() -> None:
    net = Blocks()
    sgd = optim.SGD(net.parameters(), lr=0.1)
    with pytest.raises(weft.WeftError, match=r"'layer\.\*' matches no module") as error:
        weft.train_step(net, F.mse_loss, sgd, checkpoint=["layer.*"])
    assert "layers" in error.value.help
    with pytest.raises(weft.WeftError, match="no list of modules' names"):
        weft.train_step(net, F.mse_loss, sgd, checkpoint=True)
