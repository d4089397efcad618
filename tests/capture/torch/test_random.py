"""Random ops: numbers of a documented generator, by a seed, the same on every mesh."""

from __future__ import annotations

import numpy as np

import weft
from tests.capture.torch.models import torch
from weft import Mesh, P

WORD = np.uint64


def squares(count: int, seed: int, draw: int) -> np.ndarray:
    """The generator in numpy: 64 bits for each index."""
    with np.errstate(over="ignore"):
        key = WORD((seed + draw * 0x9E3779B97F4A7C15) % 2**64)
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            key = (key ^ (key >> WORD(shift))) * WORD(factor)
        key = (key ^ (key >> WORD(31))) | WORD(1)
        start = np.arange(count, dtype=WORD) * key
        moved, made = start + key, start
        for addend in (start, moved, start):
            made = made * made + addend
            made = (made >> WORD(32)) | (made << WORD(32))
        last = made * made + moved
        made = (last >> WORD(32)) | (last << WORD(32))
        return last ^ ((made * made + start) >> WORD(32))


def seed_after(number: int) -> int:
    """The seed of the first run after torch.manual_seed."""
    torch.manual_seed(number)
    drawn = int(torch.randint(-(2**63), 2**63 - 1, (), dtype=torch.int64))
    torch.manual_seed(number)
    return drawn


def test_bits_are_the_generators() -> None:
    def drawn(x):
        return torch.rand_like(x), torch.randint(3, 9, (6,)), torch.rand(4, dtype=torch.float64)

    compiled = weft.compile(drawn)  # when it is called: that draws no numbers
    seed = seed_after(3)
    one, two, three = compiled(torch.zeros(5, 7))
    expected = (squares(35, seed, 1) >> WORD(40)).astype(np.float32) * np.float32(2**-24)
    np.testing.assert_array_equal(one.numpy(), expected.reshape(5, 7))
    np.testing.assert_array_equal(two.numpy(), squares(6, seed, 2) % WORD(6) + WORD(3))
    np.testing.assert_array_equal(three.numpy(), (squares(4, seed, 3) >> WORD(11)) * 2.0**-53)


def test_dropout_by_a_seed_on_every_mesh() -> None:
    class Dropped(torch.nn.Module):
        def forward(self, x):
            return torch.nn.functional.dropout(x, 0.25, self.training)

    model, x = Dropped().train(), torch.ones(64, 32)
    compiled = weft.compile(model, x)
    seed_after(5)
    first, second = compiled(x), compiled(x)
    assert not torch.equal(first, second)
    assert {*first.unique().tolist()} == {0.0, float(np.float32(1 / 0.75))}
    assert abs(float((first == 0).float().mean()) - 0.25) < 0.05
    split = weft.compile(model, x, mesh=Mesh(data=4, model=2), in_shardings=P("data", "model"))
    seed_after(5)
    assert torch.equal(split(x), first)
    assert not split.collectives()
    model.eval()
    assert torch.equal(compiled(x), x)


def test_distributions() -> None:
    """First moments, within four standard errors, and ranges."""

    def drawn(x):
        return {
            "normal": (torch.randn_like(x), 0.0, 1.0),
            "moved": (torch.empty_like(x).normal_(1.0, 2.0), 1.0, 2.0),
            "uniform": (torch.empty_like(x).uniform_(-2.0, 4.0), 1.0, 3**0.5),
            "exponential": (torch.empty_like(x).exponential_(2.0), 0.5, 0.5),
            "bernoulli": (torch.bernoulli(torch.full_like(x, 0.3)), 0.3, 0.21**0.5),
            "narrow": (torch.rand(x.shape, dtype=torch.bfloat16), 0.498, 12**-0.5),
        }

    x = torch.zeros(100, 200)
    torch.manual_seed(0)
    for name, (values, mean, deviation) in weft.compile(drawn)(x).items():
        values = values.double()
        assert abs(float(values.mean()) - mean) < 4 * deviation / 20000**0.5, name
        assert abs(float(values.std()) / deviation - 1) < 0.05, name
        if name in ("uniform", "narrow"):
            low, high = (-2, 4) if name == "uniform" else (0, 0.999)
            assert low <= float(values.min()) and float(values.max()) <= high


def test_permutations_and_choices():
    def drawn(chances):
        order = torch.randperm(50)
        once = torch.multinomial(chances, 4)
        again = torch.multinomial(chances, 200, replacement=True)
        return order, once, again

    torch.manual_seed(0)
    chances = torch.tensor([[0.0, 1.0, 2.0, 3.0, 4.0], [5.0, 0.0, 1.0, 1.0, 1.0]])
    order, once, again = weft.compile(drawn, chances)(chances)
    assert sorted(order.tolist()) == [*range(50)] != order.tolist()
    assert [set(row) for row in once.tolist()] == [{1, 2, 3, 4}, {0, 2, 3, 4}]
    counts = torch.stack([torch.bincount(row, minlength=5) for row in again])
    expected = 200 * chances / chances.sum(-1, keepdim=True)
    assert not counts[chances == 0].any()
    assert ((counts - expected).abs() < 5 * expected.sqrt() + 1).all()
