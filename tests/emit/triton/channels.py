"""Networks of convolutions whose layout the triton target chooses, and their comparison."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

import weft
from weft.emit.triton.emit import emitted
from weft.emit.triton.library import convolution


def convolve_all(monkeypatch: Any) -> None:
    """Give convolutions of any size to the library, channels last."""
    monkeypatch.setattr(convolution, "LEAST", 1)
    monkeypatch.setattr(import_module("weft.optimize.layout.channels_last"), "LEAST", 1)
    emitted.cache_clear()


class Net(nn.Module):
    """Convolutions, a pool, a residual sum, a group norm, an upsampling and a concatenation."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.a = nn.Conv2d(3, 8, 3, 2, 1), nn.Conv2d(8, 16, 3, 1, 1)
        self.norm, self.b = nn.GroupNorm(4, 16), nn.Conv2d(16, 16, 1)
        self.last = nn.Conv2d(32, 5, 3, 1, (2, 1), dilation=(2, 1))

    def forward(self, x: Any) -> Any:
        x = F.max_pool2d(F.relu(self.stem(x)), 3, 2, 1)
        y = F.silu(self.norm(self.a(x)))
        z = F.relu(self.b(y) + y)
        z = F.interpolate(F.avg_pool2d(z, 2), scale_factor=2.0)
        wide = torch.cat([z, y[:, :, : z.shape[2], : z.shape[3]]], 1)
        made = self.last(F.pad(wide, (1, 0, 0, 2)))
        return made, z.mean((2, 3)), made.flatten(1).sum(1)


def compare_networks(device: str, dtype: Any) -> None:
    """Compare the network with PyTorch's, of f32."""
    torch.manual_seed(0)
    model, x = Net().eval(), torch.randn(2, 3, 21, 19)
    with torch.no_grad():
        expected = model(x)
        model, x = model.to(device, dtype), x.to(device, dtype)
        made = weft.compile(model, x, target="triton")(x)
    for one, other in zip(made, expected, strict=True):
        found = one.cpu().float()
        scale = float(other.abs().max())
        assert float((found - other).abs().max()) <= 0.03 * scale
