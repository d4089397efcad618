"""Small modules that the tests of the PyTorch door compile."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
nn, F = torch.nn, torch.nn.functional


class Mlp(nn.Module):
    """Two layers, a norm between them."""

    def __init__(self, width: int = 16):
        super().__init__()
        self.first, self.norm = nn.Linear(8, width), nn.LayerNorm(width)
        self.second = nn.Linear(width, 4)

    def forward(self, x):
        return self.second(self.norm(F.gelu(self.first(x))))


class Cnn(nn.Module):
    """Convolutions of all kinds, batch norm and pooling."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, stride=2, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(8)
        self.depth = nn.Conv2d(8, 8, 3, padding=2, dilation=2, groups=8)
        self.up = nn.ConvTranspose2d(8, 4, 3, stride=2, padding=1, output_padding=1, groups=2)
        self.head = nn.Linear(4, 5)

    def forward(self, x):
        h = F.relu(self.norm(self.stem(x)))
        h = F.max_pool2d(h, 3, 2, 1)
        h = self.up(F.silu(self.depth(h)))
        h = h + F.interpolate(h[..., ::2, ::2], size=h.shape[-2:], mode="bilinear")
        return self.head(F.adaptive_avg_pool2d(h, 1).flatten(1))


class Block(nn.Module):
    """Attention and an MLP."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.norm, self.qkv = nn.LayerNorm(width), nn.Linear(width, 3 * width)
        self.out, self.mlp = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x):
        batch, length, width = x.shape
        parts = self.qkv(self.norm(x)).view(batch, length, 3, self.heads, -1)
        q, k, v = parts.permute(2, 0, 3, 1, 4).unbind(0)
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, length, width))
        return x + F.silu(self.mlp(x))


class Transformer(nn.Module):
    """An embedding tied to the logits, and blocks."""

    def __init__(self, words: int = 32, width: int = 16, layers: int = 2):
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.layers = nn.ModuleList(Block(width, 2) for _ in range(layers))
        self.head = nn.Linear(width, words, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids):
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        return {"logits": self.head(x), "hidden": x}


class Counter(nn.Module):
    """Keeps what it has seen in a buffer, and a parameter beside it."""

    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(4))
        self.weight = nn.Parameter(torch.ones(4))

    def forward(self, x):
        self.seen += x.sum(0)
        return x * self.weight + self.seen
