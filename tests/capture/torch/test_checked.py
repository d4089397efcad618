"""Functions of PyTorch's that check or count elements, by versions that can be exported."""

from __future__ import annotations

import pytest

import weft
from tests.capture.torch.models import F, torch

SIGNALS = [
    {"n_fft": 8}, {"n_fft": 8, "hop_length": 3, "win_length": 5, "normalized": True},
    {"n_fft": 7, "hop_length": 2, "length": 20}, {"n_fft": 8, "center": False, "length": 40},
    {"n_fft": 6, "hop_length": 2, "onesided": False},
    {"n_fft": 6, "hop_length": 2, "onesided": False, "return_complex": True},
]  # fmt: skip


@pytest.mark.filterwarnings("ignore:The length of signal")
def test_inverse_short_time_transforms():
    torch.manual_seed(0)
    for options in SIGNALS:
        width = options.get("win_length", options["n_fft"])
        rows = options["n_fft"] if options.get("onesided") is False else options["n_fft"] // 2 + 1
        x = torch.randn(2, rows, 9, dtype=torch.complex64)
        window = 0.5 + torch.rand(width)

        def inverse(x, window=window, options=options):
            return torch.istft(x, window=window, **options)

        torch.testing.assert_close(weft.compile(inverse)(x), inverse(x), rtol=1e-4, atol=1e-4)


def test_choices_parts_and_spaces():
    def function(x, start, end):
        chosen = [
            torch.combinations(x[:, 0], r, repeats) for r in (1, 2, 3) for repeats in (False, True)
        ]
        narrowed = [torch.narrow(x, 1, at, 2) for at in (start, -start - 1, 1)]
        spaced = [torch.linspace(start, end, n, dtype=torch.int64) for n in (1, 2, 6)]
        spaced += [torch.linspace(start, 9.5, 4), torch.linspace(-7, start, 5, dtype=torch.int32)]
        return [*chosen, *narrowed, *spaced, torch.combinations(x[:1, 0], 2)]

    x, start, end = torch.randn(4, 5), torch.tensor(2), torch.tensor(-11)
    torch.testing.assert_close(weft.compile(function)(x, start, end), function(x, start, end))


def test_chunks_of_a_loss_are_the_compilers():
    options = getattr(torch.nn, "LinearCrossEntropyOptions", None)
    if options is None:
        pytest.skip("of PyTorch 2.13")
    x, w, target = torch.randn(6, 4), torch.randn(5, 4), torch.tensor([1, 0, 4, -100, 2, 3])

    def loss(x, w, target):
        return F.linear_cross_entropy(x, w, target, options=options())

    torch.testing.assert_close(weft.compile(loss)(x, w, target), loss(x, w, target))


class Dropping(torch.nn.Module):
    """Layers that are left out with a probability, as Hugging Face's models write it."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.layers, self.rate = torch.nn.ModuleList([torch.nn.Linear(4, 4) for _ in "ab"]), rate

    def forward(self, x):
        for layer in self.layers:
            if self.training:
                chance = torch.rand([])
                if chance < self.rate:
                    continue
            x = torch.tanh(layer(x))
        return x


def test_layers_that_are_never_dropped():
    module, x = Dropping(0.0), torch.randn(8, 4)
    torch.testing.assert_close(weft.compile(module, target="numpy")(x), module(x).detach())
    with pytest.raises(weft.errors.WeftError, match="it branches on elements of a tensor"):
        weft.compile(Dropping(0.5), target="numpy")(x)
