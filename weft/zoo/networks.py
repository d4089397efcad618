"""Networks written with torch.nn alone. Imported only when one of them is built."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Mlp(nn.Module):
    """Linear layers, a norm, and dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(32, 64), nn.GELU(), nn.LayerNorm(64), nn.Dropout(0.0), nn.Linear(64, 16)
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x)


class Residual(nn.Module):
    """Two convolutions with batch norms, and a shortcut."""

    def __init__(self, in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(in_channels, out_channels, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(out_channels, out_channels, 3, 1, 1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(out_channels), nn.BatchNorm2d(out_channels)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or in_channels != out_channels:
            convolution = nn.Conv2d(in_channels, out_channels, 1, stride, bias=False)
            self.shortcut = nn.Sequential(convolution, nn.BatchNorm2d(out_channels))

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.norm1(self.first(x)))
        return F.relu(self.norm2(self.second(h)) + self.shortcut(x))


class ResNet(nn.Module):
    """A residual network with a max pool at its stem."""

    def __init__(self, width: int = 8, stages: int = 3) -> None:
        super().__init__()
        stem = nn.Conv2d(3, width, 7, 2, 3, bias=False)
        self.stem = nn.Sequential(
            stem, nn.BatchNorm2d(width), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)
        )
        body: list[nn.Module] = []
        channels = width
        for stage in range(stages):
            out_channels = width * 2**stage
            body += [
                Residual(channels, out_channels, 1 if stage == 0 else 2),
                Residual(out_channels, out_channels, 1),
            ]
            channels = out_channels
        self.body = nn.Sequential(*body)
        self.pool, self.head = nn.AdaptiveAvgPool2d(1), nn.Linear(channels, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.flatten(self.pool(self.body(self.stem(x))), 1))


class VggNet(nn.Module):
    """Convolutions, max and average pools, an adaptive pool, and dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(8, 16, 3, padding="same"),
            nn.ELU(),
            nn.AvgPool2d(3, 2, 1, ceil_mode=True, count_include_pad=False),
            nn.LocalResponseNorm(3),
        )
        self.pool = nn.AdaptiveAvgPool2d((3, 5))
        self.head = nn.Sequential(nn.Linear(16 * 15, 32), nn.Hardswish(), nn.Linear(32, 10))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.pool(self.features(x)).flatten(1))


class DenseNet(nn.Module):
    """Every layer reads the results of all earlier ones."""

    def __init__(self, width: int = 8, growth: int = 4, layers: int = 3) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        sizes = [width + n * growth for n in range(layers + 1)]
        self.norms = nn.ModuleList([nn.BatchNorm2d(size) for size in sizes])
        self.layers = nn.ModuleList([nn.Conv2d(s, growth, 3, padding=1) for s in sizes[:-1]])
        self.transition = nn.Sequential(nn.Conv2d(sizes[-1], 16, 1), nn.AvgPool2d(2))
        self.head = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        found = [self.stem(x)]
        for norm, layer in zip(self.norms, self.layers, strict=False):
            found.append(layer(F.relu(norm(torch.cat(found, 1)))))
        h = self.transition(F.relu(self.norms[-1](torch.cat(found, 1))))
        return self.head(h.mean((2, 3)))


class MobileNet(nn.Module):
    """Inverted bottlenecks with depthwise convolutions, and squeeze and excitation."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        inner = 4 * width
        self.stem = nn.Conv2d(3, width, 3, 2, 1)
        self.widen = nn.Sequential(nn.Conv2d(width, inner, 1), nn.BatchNorm2d(inner), nn.ReLU6())
        self.depth = nn.Conv2d(inner, inner, 5, 1, 2, groups=inner)
        self.squeeze, self.excite = nn.Conv2d(inner, 4, 1), nn.Conv2d(4, inner, 1)
        self.narrow = nn.Sequential(nn.Conv2d(inner, width, 1), nn.BatchNorm2d(width))
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.hardswish(self.stem(x))
        h = F.relu6(self.depth(self.widen(x)))
        gate = self.excite(F.relu(self.squeeze(F.adaptive_avg_pool2d(h, 1))))
        h = self.narrow(h * F.hardsigmoid(gate))
        return self.head((x + h).mean((-1, -2)))


class ResidualTime(nn.Module):
    """A residual block of a diffusion network, moved by a time embedding."""

    def __init__(self, width: int, time: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(4, width), nn.GroupNorm(4, width)
        self.first = nn.Conv2d(width, width, 3, padding=1)
        self.second = nn.Conv2d(width, width, 3, padding=1)
        self.time = nn.Linear(time, width)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        h = self.first(F.silu(self.norm1(x))) + self.time(F.silu(time))[:, :, None, None]
        return x + self.second(F.silu(self.norm2(h)))


def time_embedding(time: Tensor, size: int) -> Tensor:
    """Sines and cosines of a step's number."""
    rates = torch.exp(-torch.arange(size // 2, device=time.device) * (9.2 / (size // 2)))
    angles = time[:, None].float() * rates[None]
    return torch.cat([angles.sin(), angles.cos()], -1).to(torch.get_default_dtype())


class UNet(nn.Module):
    """A diffusion UNet: residual blocks, attention, a way down and two ways up."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.heads = 4
        self.enter = nn.Conv2d(4, width, 3, padding=1)
        self.block, self.norm = ResidualTime(width, 32), nn.GroupNorm(4, width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.down = nn.Conv2d(width, 2 * width, 3, 2, 1)
        self.up1 = nn.ConvTranspose2d(2 * width, width, 2, 2)
        self.up2 = nn.Conv2d(2 * width, width, 3, padding=1)
        self.up3 = nn.Conv2d(2 * width, width, 1)
        self.leave = nn.Conv2d(2 * width, 4, 3, padding=1)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        embedded = time_embedding(time, 32).to(x.dtype)
        h = self.attention(self.block(self.enter(x), embedded))
        d = self.down(h)
        wide = self.up1(d) + self.up2(F.interpolate(d, scale_factor=2.0, mode="nearest"))
        wide = wide + self.up3(F.interpolate(d, scale_factor=2.0, mode="bilinear"))
        return self.leave(torch.cat([wide, h], 1))

    def attention(self, x: Tensor) -> Tensor:
        batch, width, high, wide = x.shape
        y = self.norm(x).flatten(2).transpose(1, 2)
        parts = self.qkv(y).view(batch, high * wide, 3, self.heads, width // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4).unbind(0)
        seen = F.scaled_dot_product_attention(q, k, v).transpose(1, 2)
        made = self.out(seen.reshape(batch, high * wide, width))
        return x + made.transpose(1, 2).view(batch, width, high, wide)


class DiffusionTransformer(nn.Module):
    """Patches, blocks whose norms are moved by time and label, and patches again."""

    def __init__(self, width: int = 32, heads: int = 4, layers: int = 2) -> None:
        super().__init__()
        self.width, self.patch = width, 2
        self.enter = nn.Conv2d(4, width, 2, 2)
        self.places = nn.Parameter(torch.randn(1, 16, width) * 0.1)
        self.time, self.label = nn.Linear(width, width), nn.Embedding(10, width)
        self.layers = nn.ModuleList([AdaptiveBlock(width, heads) for _ in range(layers)])
        self.norm = nn.LayerNorm(width, elementwise_affine=False)
        self.leave = nn.Linear(width, 2 * 2 * 4)

    def forward(self, x: Tensor, time: Tensor, label: Tensor) -> Tensor:
        batch, _, high, wide = x.shape
        h = self.enter(x).flatten(2).transpose(1, 2) + self.places
        c = self.time(time_embedding(time, self.width).to(x.dtype)) + self.label(label)
        for layer in self.layers:
            h = layer(h, c)
        h = self.leave(self.norm(h)).view(batch, high // 2, wide // 2, 2, 2, 4)
        return torch.einsum("nhwpqc->nchpwq", h).reshape(batch, 4, high, wide)


class AdaptiveBlock(nn.Module):
    """Attention and an MLP whose norms are scaled, shifted and gated by a condition."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width, elementwise_affine=False)
        self.norm2 = nn.LayerNorm(width, elementwise_affine=False)
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU("tanh"), nn.Linear(4 * width, width)
        )
        self.moves = nn.Linear(width, 6 * width)

    def forward(self, x: Tensor, c: Tensor) -> Tensor:
        moves = self.moves(F.silu(c)).unsqueeze(1).chunk(6, dim=-1)
        shift1, scale1, gate1, shift2, scale2, gate2 = moves
        h = self.norm1(x) * (1 + scale1) + shift1
        x = x + gate1 * self.attention(h, h, h, need_weights=False)[0]
        return x + gate2 * self.mlp(self.norm2(x) * (1 + scale2) + shift2)


class Recurrent(nn.Module):
    """An embedding, a recurrent network in two directions, and a head."""

    def __init__(self, kind: str, words: int, width: int = 16) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, width)
        made = getattr(nn, kind)
        self.body = made(width, width, num_layers=2, batch_first=True, bidirectional=True)
        self.head = nn.Linear(2 * width, words)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.body(self.embed(ids))[0])


class GraphConvolution(nn.Module):
    """Messages along edges, summed at their ends and divided by the degrees."""

    def __init__(self, width: int = 16, layers: int = 2) -> None:
        super().__init__()
        self.enter = nn.Linear(8, width)
        self.messages = nn.ModuleList([nn.Linear(2 * width, width) for _ in range(layers)])
        self.updates = nn.ModuleList([nn.GRUCell(width, width) for _ in range(layers)])
        self.head = nn.Linear(width, 4)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        source, target = edges
        h = torch.relu(self.enter(x))
        ones = torch.ones(edges.shape[1], dtype=x.dtype, device=x.device)
        degree = torch.zeros(x.shape[0], dtype=x.dtype, device=x.device)
        degree = degree.index_add(0, target, ones).clamp(min=1)
        for message, update in zip(self.messages, self.updates, strict=True):
            sent = message(torch.cat([h[source], h[target]], -1))
            summed = torch.zeros_like(h).index_add(0, target, F.leaky_relu(sent))
            h = update(summed / degree[:, None], h)
        return self.head(h)


class GraphAttention(nn.Module):
    """Attention over the edges of a graph: a softmax at each node by scattered maxima and sums."""

    def __init__(self, width: int = 16, heads: int = 4) -> None:
        super().__init__()
        self.heads, self.enter = heads, nn.Linear(8, width)
        self.left = nn.Parameter(torch.randn(heads, width // heads) * 0.3)
        self.right = nn.Parameter(torch.randn(heads, width // heads) * 0.3)
        self.head = nn.Linear(width, 4)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        source, target = edges
        nodes = x.shape[0]
        h = self.enter(x).view(nodes, self.heads, -1)
        score = (h * self.left).sum(-1)[source] + (h * self.right).sum(-1)[target]
        score = F.leaky_relu(score, 0.2)
        index = target[:, None].expand_as(score)
        most = torch.full((nodes, self.heads), -1e9, dtype=x.dtype, device=x.device)
        most = most.scatter_reduce(0, index, score.detach(), "amax")
        weight = torch.exp(score - most[target])
        total = torch.zeros_like(most).scatter_add(0, index, weight)
        weight = weight / (total[target] + 1e-9)
        made = torch.zeros_like(h).index_add(0, target, h[source] * weight[..., None])
        return self.head(F.elu(made.flatten(1)))


class Mixer(nn.Module):
    """Tokens are mixed by one MLP, channels by another."""

    def __init__(self, width: int = 16, tokens: int = 16) -> None:
        super().__init__()
        self.enter = nn.Conv2d(3, width, 4, 4)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.tokens = nn.Sequential(nn.Linear(tokens, 32), nn.GELU(), nn.Linear(32, tokens))
        self.channels = nn.Sequential(nn.Linear(width, 32), nn.GELU(), nn.Linear(32, width))
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        h = self.enter(x).flatten(2).transpose(1, 2)
        h = h + self.tokens(self.norm1(h).transpose(1, 2)).transpose(1, 2)
        return self.head((h + self.channels(self.norm2(h))).mean(1))


class Autoencoder(nn.Module):
    """A variational autoencoder of images; the noise is an argument."""

    def __init__(self, latent: int = 8) -> None:
        super().__init__()
        self.down = nn.Sequential(
            nn.Conv2d(3, 8, 3, 2, 1), nn.LeakyReLU(), nn.Conv2d(8, 16, 3, 2, 1), nn.Softplus()
        )
        self.mean, self.spread = nn.Linear(256, latent), nn.Linear(256, latent)
        self.enter = nn.Linear(latent, 256)
        self.up = nn.Sequential(
            nn.ConvTranspose2d(16, 8, 4, 2, 1),
            nn.InstanceNorm2d(8, affine=True),
            nn.PReLU(8),
            nn.Upsample(scale_factor=2, mode="bicubic", align_corners=False),
            nn.Conv2d(8, 3, 3, padding=1),
        )

    def forward(self, x: Tensor, noise: Tensor) -> dict[str, Tensor]:
        h = self.down(x).flatten(1)
        mean, spread = self.mean(h), self.spread(h)
        z = mean + noise * torch.exp(0.5 * spread)
        made = torch.sigmoid(self.up(self.enter(z).view(-1, 16, 4, 4)))
        divergence = -0.5 * (1 + spread - mean.square() - spread.exp()).sum(-1)
        return {"image": made, "divergence": divergence}


class TemporalConvolution(nn.Module):
    """Dilated causal convolutions over a signal, with gates, as in WaveNet."""

    def __init__(self, width: int = 16, layers: int = 3) -> None:
        super().__init__()
        self.enter = nn.Conv1d(1, width, 1)
        self.layers = nn.ModuleList(
            [nn.utils.parametrizations.weight_norm(nn.Conv1d(width, 2 * width, 2, dilation=2**n))
             for n in range(layers)]
        )  # fmt: skip
        self.skips = nn.ModuleList([nn.Conv1d(width, width, 1) for _ in range(layers)])
        self.leave = nn.Conv1d(width, 8, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = self.enter(x)
        total = torch.zeros_like(h)
        for n, (layer, skip) in enumerate(zip(self.layers, self.skips, strict=True)):
            value, gate = layer(F.pad(h, (2**n, 0))).chunk(2, 1)
            h = h + torch.tanh(value) * torch.sigmoid(gate)
            total = total + skip(h)
        return self.leave(F.relu(total))


class RadianceField(nn.Module):
    """Points on rays, encoded by sines; colours composed along the rays."""

    def __init__(self, width: int = 32, octaves: int = 4) -> None:
        super().__init__()
        self.octaves = octaves
        self.first, self.second = nn.Linear(6 * octaves, width), nn.Linear(width, width)
        self.density, self.colour = nn.Linear(width, 1), nn.Linear(width, 3)

    def forward(self, points: Tensor, distances: Tensor) -> Tensor:
        rates = 2.0 ** torch.arange(self.octaves, device=points.device, dtype=points.dtype)
        angles = (points[..., None] * rates).flatten(-2)
        h = F.relu(self.second(F.relu(self.first(torch.cat([angles.sin(), angles.cos()], -1)))))
        opaque = 1 - torch.exp(-F.softplus(self.density(h)[..., 0]) * distances)
        passed = torch.cumprod(1 - opaque + 1e-6, -1)
        passed = torch.cat([torch.ones_like(passed[:, :1]), passed[:, :-1]], -1)
        return ((opaque * passed)[..., None] * torch.sigmoid(self.colour(h))).sum(1)


class Recommender(nn.Module):
    """Embedding bags, dense features, and products of all pairs, as in DLRM."""

    def __init__(self, tables: int = 3, width: int = 8) -> None:
        super().__init__()
        self.bags = nn.ModuleList([nn.EmbeddingBag(40, width, mode="sum") for _ in range(tables)])
        self.dense = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, width))
        pairs = tables * (tables + 1) // 2
        self.head = nn.Linear(width + pairs, 1)

    def forward(self, dense: Tensor, sparse: Tensor) -> Tensor:
        x = self.dense(dense)
        found = [x, *[bag(sparse[:, n]) for n, bag in enumerate(self.bags)]]
        stacked = torch.stack(found, 1)
        products = stacked @ stacked.transpose(1, 2)
        rows, columns = torch.tril_indices(len(found), len(found), -1)
        return torch.sigmoid(self.head(torch.cat([x, products[:, rows, columns]], 1)))


class Segmenter(nn.Module):
    """A promptable segmenter: image tokens, point prompts, attention both ways, upscaled masks."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.image = nn.Conv2d(3, width, 4, 4)
        self.places = nn.Parameter(torch.randn(1, width, 8, 8) * 0.1)
        self.register_buffer("rates", torch.randn(2, width // 2))
        self.kinds, self.mask = nn.Embedding(2, width), nn.Embedding(3, width)
        self.to_image = nn.MultiheadAttention(width, 4, batch_first=True)
        self.to_tokens = nn.MultiheadAttention(width, 4, batch_first=True)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.up = nn.ConvTranspose2d(width, width // 4, 2, 2)
        self.kernels, self.score = nn.Linear(width, width // 4), nn.Linear(width, 1)

    def forward(self, x: Tensor, points: Tensor, kinds: Tensor) -> dict[str, Tensor]:
        image = self.image(x) + self.places
        batch, width, high, wide = image.shape
        angles = 6.2831853 * ((2 * points - 1) @ self.rates)
        prompts = torch.cat([angles.sin(), angles.cos()], -1) + self.kinds(kinds)
        tokens = torch.cat([self.mask.weight.expand(batch, -1, -1), prompts], 1)
        keys = image.flatten(2).transpose(1, 2)
        tokens = self.norm1(tokens + self.to_image(tokens, keys, keys, need_weights=False)[0])
        keys = self.norm2(keys + self.to_tokens(keys, tokens, tokens, need_weights=False)[0])
        wider = F.gelu(self.up(keys.transpose(1, 2).view(batch, width, high, wide)))
        masks = torch.einsum("btc,bchw->bthw", self.kernels(tokens[:, :3]), wider)
        masks = F.interpolate(masks, x.shape[-2:], mode="bilinear", align_corners=False)
        return {"masks": masks, "scores": self.score(tokens[:, :3])[..., 0]}


class Encoder(nn.Module):
    """PyTorch's own transformer: an encoder with a padding mask and a decoder with a causal one."""

    def __init__(self, words: int, width: int = 32) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.body = nn.Transformer(
            width, 4, 2, 2, 64, dropout=0.0, batch_first=True, norm_first=True
        )
        self.head = nn.Linear(width, words)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        length = target.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(length, dtype=self.embed.weight.dtype)
        h = self.body(self.embed(source), self.embed(target), tgt_mask=mask, tgt_is_causal=True)
        return self.head(h)
