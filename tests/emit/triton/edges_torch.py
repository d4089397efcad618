"""Modules of PyTorch at the edges: in-place ops, convolutions, attention, strided inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
Case = tuple[str, nn.Module, tuple[torch.Tensor, ...]]


def f(*shape: int, seed: int = 0, dtype: torch.dtype = F32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed + len(shape))
    return torch.randn(shape, generator=generator).to(dtype)


def i(most: int, *shape: int) -> torch.Tensor:
    return torch.randint(0, most, shape, generator=torch.Generator().manual_seed(0))


class Of(nn.Module):
    """A function of a module that holds modules and buffers."""

    def __init__(self, function: Callable[..., Any], **parts: Any) -> None:
        super().__init__()
        self.function = function
        for name, part in parts.items():
            is_buffer = isinstance(part, torch.Tensor)
            (self.register_buffer if is_buffer else self.add_module)(name, part)

    def forward(self, *given: torch.Tensor) -> Any:
        return self.function(self, *given)


def inplace(m, x):
    y = x.clone()
    y += 1
    y.mul_(2).relu_()
    y[1:3, ::2] = 5
    y[:, 0].add_(x[:, 1])
    y.masked_fill_(x > 1, -1)
    y.index_add_(0, torch.tensor([1, 1, 0], device=x.device), x[:3])
    y.scatter_add_(1, (x[:, :2] > 0).long(), x[:, 2:4])
    z = y.view(-1)
    z[3:9].zero_()
    y.T[2].copy_(x.T[3])
    y.clamp_(-2, 3)
    y.cumsum_(1)
    F.silu(y, inplace=True)
    return y, z.sum()


def buffers(m, x):
    m.total.add_(x.sum(0))
    m.count += 1
    return m.total / m.count, x * m.count


def shapes(m, x):
    return (
        x.flip(0),
        x.roll(2, 1),
        x.unfold(1, 3, 2),
        x.tril(-1),
        x.diagonal(1),
        x.repeat(2, 1, 1),
        x.movedim(0, 1),
        x.expand(2, *x.shape)[1],
        torch.stack([x, x], -1),
        x.chunk(3, 1),
        x.split([2, 4], 0),
        F.pad(x, (1, 2), mode="constant"),
        x[:, [0, 2, 2]],
        x[..., None, :],
        torch.cat([x, x[:0]], 0),
        x.T.contiguous(),
    )


def reduce_(m, x):
    return (
        x.std(0),
        x.var(1, unbiased=False),
        x.median(1),
        x.kthvalue(2, 1),
        x.topk(3, 0),
        x.sort(1, descending=True),
        x.argmax(),
        x.amax((0, 1)),
        x.prod(1),
        x.norm(2, 1),
        torch.logsumexp(x, 0),
        x.cumprod(1),
        x.cummax(0),
        x.softmax(0),
        x.log_softmax(1),
        x.nan_to_num(),
        torch.cdist(x, x),
        x.count_nonzero(1),
        torch.bucketize(x, torch.tensor([-1.0, 0, 1], device=x.device)),
        x.logcumsumexp(1),
        x.quantile(0.3, 1),
    )


def types(m, x):
    return (
        x.half() * 3.3,
        x.double() / 3,
        x.int() // 2,
        (x * 50).to(torch.uint8),
        x > 0,
        x.bool() ^ (x > 1),
        x.long() % 3,
        torch.bitwise_left_shift(x.int(), 3),
        x.to(torch.bfloat16) @ x.to(torch.bfloat16).T,
        x.half() @ x.half().T,
        torch.complex(x, x).abs(),
        torch.fft.fft(x).real,
        (x.int() @ x.int().T) if x.device.type == "cpu" else x.sum(),
    )


def sdpa(**o):
    return lambda m, q, k, v, *mask: F.scaled_dot_product_attention(q, k, v, *mask, **o)


def rnn(m, x):
    return m.layer(x)[0]


def cases() -> Iterator[Case]:
    bf, h = BF16, F16
    yield "in place", Of(inplace), (f(6, 9),)
    yield (
        "buffers",
        Of(buffers, total=torch.zeros(9), count=torch.zeros((), dtype=torch.int64)),
        (f(6, 9),),
    )
    yield "shapes", Of(shapes), (f(6, 9),)
    yield "reductions", Of(reduce_), (f(6, 9),)
    yield "types", Of(types), (f(6, 9),)
    for dt in (torch.float32, bf, h):
        for name, make, shape in (
            ("conv1d", lambda: nn.Conv1d(5, 7, 4, 2, 1), (1, 5, 19)),
            ("conv2d", lambda: nn.Conv2d(3, 17, 3, 2, 1), (1, 3, 15, 13)),
            (
                "conv2d same",
                lambda: nn.Conv2d(3, 4, 4, padding="same", padding_mode="circular"),
                (2, 3, 9, 9),
            ),
            ("depthwise", lambda: nn.Conv2d(9, 9, 5, 1, 2, groups=9), (2, 9, 11, 7)),
            (
                "groups dilated",
                lambda: nn.Conv2d(8, 12, 3, 1, 2, 2, groups=4, bias=False),
                (1, 8, 11, 7),
            ),
            ("conv2d large", lambda: nn.Conv2d(33, 65, 3, padding=1), (2, 33, 17, 19)),
            ("1x1", lambda: nn.Conv2d(33, 31, 1), (1, 33, 1, 1)),
            ("transposed", lambda: nn.ConvTranspose2d(4, 6, 3, 2, 1, 1), (1, 4, 5, 6)),
            ("conv3d", lambda: nn.Conv3d(2, 3, (1, 3, 2), (1, 2, 1), (0, 1, 1)), (1, 2, 4, 6, 5)),
        ):
            torch.manual_seed(0)
            yield f"{name} {dt}", make().to(dt), (f(*shape, dtype=dt),)
        yield f"layer norm {dt}", nn.LayerNorm(999).to(dt), (f(1, 3, 999, dtype=dt),)
        yield f"rms norm {dt}", nn.RMSNorm(37).to(dt), (f(5, 37, dtype=dt),)
        yield f"group norm {dt}", nn.GroupNorm(3, 9).to(dt), (f(1, 9, 5, 7, dtype=dt),)
        for d in (40, 64, 80, 96, 128, 192, 256):
            q, k, v = (f(1, 2, 33, d, seed=s, dtype=dt) for s in range(3))
            yield f"sdpa causal {d} {dt}", Of(sdpa(is_causal=True)), (q, k, v)
        q, k, v = (
            f(2, 6, 7, 96, dtype=dt),
            f(2, 2, 19, 96, seed=1, dtype=dt),
            f(2, 2, 19, 96, seed=2, dtype=dt),
        )
        yield f"sdpa grouped {dt}", Of(sdpa(enable_gqa=True)), (q, k, v)
        yield f"sdpa scale {dt}", Of(sdpa(scale=0.3)), (q, q.flip(1), q * 2)
        yield f"sdpa bool mask {dt}", Of(sdpa()), (q, q, q, f(2, 1, 7, 7) > 0.5)
        yield f"sdpa bias {dt}", Of(sdpa()), (q, q, q, f(6, 7, 7, dtype=dt))
        yield f"sdpa one query {dt}", Of(sdpa(enable_gqa=True)), (q[:, :, :1], k, v)
        yield (
            f"sdpa from heads {dt}",
            Of(sdpa(is_causal=True)),
            tuple(f(2, 33, 3, 64, seed=s, dtype=dt).transpose(1, 2) for s in range(3)),
        )
    bn = nn.BatchNorm2d(5)
    yield "batch norm train", bn.train(), (f(3, 5, 7, 9),)
    yield (
        "batch norm eval",
        nn.Sequential(
            nn.Conv2d(3, 5, 3),
            nn.BatchNorm2d(5),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, 2, 1, ceil_mode=True),
        ).eval(),
        (f(1, 3, 15, 14),),
    )
    yield (
        "pools",
        Of(
            lambda m, x: (
                F.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
                F.adaptive_avg_pool2d(x, (3, 2)),
                F.max_pool2d(x, 2, ceil_mode=True),
                F.lp_pool2d(x.abs(), 2, 3),
                F.adaptive_max_pool2d(x, 2),
            )
        ),
        (f(2, 3, 11, 7),),
    )
    yield (
        "resized",
        Of(
            lambda m, x: (
                F.interpolate(x, scale_factor=2, mode="nearest"),
                F.interpolate(x, (13, 5), mode="bilinear"),
                F.interpolate(x, scale_factor=1.5, mode="bicubic"),
                F.pixel_shuffle(x, 2),
                F.grid_sample(x, torch.tanh(x[:, :2].permute(0, 2, 3, 1)), align_corners=False),
            )
        ),
        (f(2, 4, 7, 6),),
    )
    yield (
        "lstm",
        Of(rnn, layer=nn.LSTM(7, 9, 2, bidirectional=True, batch_first=True)),
        (f(1, 5, 7),),
    )
    yield "gru", Of(rnn, layer=nn.GRU(7, 9)), (f(5, 1, 7),)
    yield (
        "heads",
        Of(
            lambda m, x: m.layer(x, x, x, need_weights=True),
            layer=nn.MultiheadAttention(24, 3, batch_first=True),
        ),
        (f(1, 7, 24),),
    )
    yield (
        "encoder",
        nn.TransformerEncoderLayer(24, 3, 37, batch_first=True, norm_first=True).eval(),
        (f(1, 7, 24),),
    )
    yield "embedding", nn.Embedding(32001, 17, padding_idx=3), (i(32001, 1, 9),)
    yield "embedding bag", nn.EmbeddingBag(101, 7, mode="mean"), (i(101, 3, 4),)
    yield (
        "loss",
        Of(
            lambda m, x, t: (
                F.cross_entropy(x, t),
                F.cross_entropy(x, t, ignore_index=5, label_smoothing=0.1),
                F.nll_loss(x.log_softmax(1), t, reduction="none"),
                F.cross_entropy(x.bfloat16(), t),
                F.kl_div(x.log_softmax(1), x.flip(1).softmax(1)),
                F.huber_loss(x, x * 2),
            )
        ),
        (f(3, 32001), torch.tensor([5, 32000, 7])),
    )
    yield (
        "strided",
        Of(lambda m, x, y, z: x * 2 + y + z),
        (
            f(9, 6).T,
            f(12, 18)[::2, ::2][:, :9][:6].contiguous().T.contiguous().T,
            f(1, 9).expand(6, 9),
        ),
    )
    yield "unaligned", Of(lambda m, x, y: (x * 2, y.sum(), x @ y[:64])), (f(65)[1:], f(67)[3:])
    yield (
        "empty",
        Of(lambda m, x: (x.sum(0), x @ x.T, x.softmax(1), torch.cat([x, x]), x.mean(1))),
        (f(0, 3),),
    )
    yield "scalar", Of(lambda m, x: (x + 1, x.exp(), x.unsqueeze(0).softmax(0))), (f(),)
    if str(f(1).device) and torch.cuda.is_available():
        yield "large product", nn.Linear(129, 32001, bias=True).to(bf), (f(1, 129, dtype=bf),)
    yield "odd product", nn.Linear(129, 257).to(bf), (f(33, 129, dtype=bf),)
    yield "product of half", nn.Linear(129, 257).to(h), (f(33, 129, dtype=h),)
    yield "product of double", nn.Linear(129, 257).double(), (f(33, 129).double(),)
    yield (
        "special values",
        Of(
            lambda m, x: (
                x.exp(),
                x.log(),
                x.softmax(0),
                x.max(),
                x.relu(),
                F.gelu(x.clamp(-9, 9)),
                x.sigmoid(),
                x.clamp(-1, 1),
                x.sign(),
                x.fmod(2),
                x.round(),
                x.rsqrt(),
                torch.maximum(x, x.flip(0)),
                x.sort()[0],
                x.isnan(),
                F.softplus(x),
                x.pow(2),
                x.tanh(),
                x.atan2(x.flip(0)),
            )
        ),
        (
            torch.tensor(
                [0.0, -0.0, float("inf"), float("-inf"), float("nan"), 1e4, -2.5, 0.5, 1.5, 65504.0]
            ),
        ),
    )
    yield (
        "complex",
        Of(
            lambda m, x: (
                x * x,
                x.abs(),
                x.conj() @ x.T,
                torch.view_as_real(x),
                x.exp(),
                x.sum(0),
                x.real,
            )
        ),
        (torch.complex(f(5, 7), f(5, 7, seed=1)),),
    )
    yield "neg input", Of(lambda m, x: x * 2), (torch._neg_view(f(5, 7)),)
    yield "conj input", Of(lambda m, x: x * 2), (torch.complex(f(5, 7), f(5, 7, seed=1)).conj(),)
    yield (
        "negated input",
        Of(lambda m, x: x * 2),
        (torch.complex(f(5, 7), f(5, 7, seed=1)).conj().imag,),
    )


MODULES = {name: (module, given) for name, module, given in cases()}
