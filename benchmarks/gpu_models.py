"""Models of benchmarks/gpu.py at realistic sizes, in plain PyTorch: ViT, ResNet, UNet, Mamba2."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F


class ViT(nn.Module):
    """ViT-B/16: patches of 16x16, 12 layers of 768."""

    def __init__(self, size=224, width=768, layers=12, heads=12):
        super().__init__()
        self.heads = heads
        self.patches = nn.Linear(3 * 16 * 16, width)
        self.place = nn.Parameter(torch.zeros(1, (size // 16) ** 2, width))
        self.blocks = nn.ModuleList(
            nn.ModuleDict(
                {
                    "first": nn.LayerNorm(width),
                    "qkv": nn.Linear(width, 3 * width),
                    "out": nn.Linear(width, width),
                    "second": nn.LayerNorm(width),
                    "up": nn.Linear(width, 4 * width),
                    "down": nn.Linear(4 * width, width),
                }
            )
            for _ in range(layers)
        )
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 1000)

    def forward(self, x):
        b, c, h, w = x.shape
        x = x.view(b, c, h // 16, 16, w // 16, 16).permute(0, 2, 4, 1, 3, 5)
        x = self.patches(x.reshape(b, (h // 16) * (w // 16), c * 256)) + self.place
        for block in self.blocks:
            q, k, v = block["qkv"](block["first"](x)).chunk(3, -1)
            q, k, v = (t.view(b, -1, self.heads, 64).transpose(1, 2) for t in (q, k, v))
            mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(x.shape)
            x = x + block["out"](mixed)
            x = x + block["down"](F.gelu(block["up"](block["second"](x))))
        return self.head(self.norm(x).mean(1))


class Bottleneck(nn.Module):
    """A block of ResNet-50, its norms folded into scales and shifts."""

    def __init__(self, inputs, width, stride):
        super().__init__()
        self.a = nn.Conv2d(inputs, width, 1)
        self.b = nn.Conv2d(width, width, 3, stride, 1)
        self.c = nn.Conv2d(width, 4 * width, 1)
        same = inputs == 4 * width and stride == 1
        self.short = None if same else nn.Conv2d(inputs, 4 * width, 1, stride)
        with torch.no_grad():
            self.c.weight.mul_(0.2)

    def forward(self, x):
        y = self.c(F.relu(self.b(F.relu(self.a(x)))))
        return F.relu(y + (x if self.short is None else self.short(x)))


class ResNet50(nn.Module):
    """ResNet-50 for inference."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 64, 7, 2, 3)
        blocks, inputs = [], 64
        for n, (width, count) in enumerate(((64, 3), (128, 4), (256, 6), (512, 3))):
            for k in range(count):
                blocks.append(Bottleneck(inputs, width, 2 if n and not k else 1))
                inputs = 4 * width
        self.blocks, self.head = nn.Sequential(*blocks), nn.Linear(2048, 1000)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.stem(x)), 3, 2, 1)
        return self.head(self.blocks(x).mean((2, 3)))


class UNetBlock(nn.Module):
    """Two convolutions with group norms."""

    def __init__(self, inputs, width):
        super().__init__()
        self.first, self.second = nn.GroupNorm(32, inputs), nn.GroupNorm(32, width)
        self.a, self.b = nn.Conv2d(inputs, width, 3, 1, 1), nn.Conv2d(width, width, 3, 1, 1)
        self.short = nn.Conv2d(inputs, width, 1) if inputs != width else nn.Identity()

    def forward(self, x):
        y = self.b(F.silu(self.second(self.a(F.silu(self.first(x))))))
        return self.short(x) + y


class UNet(nn.Module):
    """A UNet of latent diffusion's widths, without attention."""

    def __init__(self, width=320):
        super().__init__()
        widths = (width, 2 * width, 4 * width)
        self.stem = nn.Conv2d(4, width, 3, 1, 1)
        self.down = nn.ModuleList(
            UNetBlock(a, b) for a, b in zip((width, *widths[:-1]), widths, strict=True)
        )
        self.middle = UNetBlock(widths[-1], widths[-1])
        ups = [(b + a, c) for b, a, c in ((widths[2], widths[2], widths[1]),
               (widths[1], widths[1], widths[0]), (widths[0], widths[0], widths[0]))]  # fmt: skip
        self.up = nn.ModuleList(UNetBlock(a, b) for a, b in ups)
        self.out = nn.Conv2d(width, 4, 3, 1, 1)

    def forward(self, x):
        x, kept = self.stem(x), []
        for n, block in enumerate(self.down):
            x = block(F.avg_pool2d(x, 2) if n else x)
            kept.append(x)
        x = self.middle(x)
        for n, block in enumerate(self.up):
            x = block(torch.cat([x, kept.pop()], 1))
            x = x if n == len(self.up) - 1 else F.interpolate(x, scale_factor=2.0)
        return self.out(x)


class Mamba2(nn.Module):
    """A Mamba-2 layer: state-space duality in chunks."""

    def __init__(self, width=2048, heads=64, state=128, chunk=256):
        super().__init__()
        self.heads, self.state, self.chunk, self.inner = heads, state, chunk, 2 * width
        self.norm = nn.Parameter(torch.ones(width))
        self.given = nn.Linear(width, 2 * self.inner + 2 * state + heads, bias=False)
        self.rate = nn.Parameter(torch.linspace(-3, 0, heads))
        self.out = nn.Linear(self.inner, width, bias=False)

    def forward(self, x):
        b, t, _ = x.shape
        n, q = t // self.chunk, self.chunk
        y = F.rms_norm(x, (x.shape[-1],), self.norm)
        parts = [self.inner, self.inner, self.state, self.state, self.heads]
        gate, u, keys, queries, dt = self.given(y).split(parts, -1)
        dt = F.softplus(dt.float())
        decay = (-dt * self.rate.float().exp()).view(b, n, q, self.heads)
        u = (u.view(b, t, self.heads, -1) * dt.unsqueeze(-1)).to(x.dtype)
        u = u.view(b, n, q, self.heads, -1)
        keys, queries = keys.view(b, n, q, -1), queries.view(b, n, q, -1)
        total = decay.cumsum(2)
        gaps = (total.unsqueeze(3) - total.unsqueeze(2)).permute(0, 1, 4, 2, 3)
        seen = torch.ones(q, q, dtype=torch.bool, device=x.device).tril()
        weights = torch.where(seen, gaps, -torch.inf).exp().to(x.dtype)
        scores = torch.einsum("bnis,bnjs->bnij", queries, keys).unsqueeze(2) * weights
        inside = torch.einsum("bnhij,bnjhd->bnihd", scores, u)
        left = (total[:, :, -1:] - total).exp().to(x.dtype)
        states = torch.einsum("bnjs,bnjh,bnjhd->bnhsd", keys, left, u)
        held, before = torch.zeros_like(states[:, 0]), []
        for step in range(n):
            before.append(held)
            carry = total[:, step, -1].exp().to(x.dtype)[:, :, None, None]
            held = held * carry + states[:, step]
        entered = total.exp().to(x.dtype)
        across = torch.einsum("bnis,bnih,bnhsd->bnihd", queries, entered, torch.stack(before, 1))
        mixed = (inside + across).reshape(b, t, self.inner)
        return x + self.out(mixed * F.silu(gate))


# Name: the model and the shape of its argument.
MODELS = {
    "ViT-B/16, 64 images": (ViT, (64, 3, 224, 224)),
    "ResNet-50, 64 images": (ResNet50, (64, 3, 224, 224)),
    "UNet, 8 latents of 64x64": (UNet, (8, 4, 64, 64)),
    "Mamba2 layer, 4 x 2048 tokens": (Mamba2, (4, 2048, 2048)),
}
