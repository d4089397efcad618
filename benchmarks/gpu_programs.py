"""The programs of benchmarks/gpu.py, for JAX (and so for Weft) and for PyTorch."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import torch
from torch.nn import functional as F

M, N = 16384, 8192


def random(*shape, dtype=torch.bfloat16):
    return torch.randn(*shape, device="cuda", dtype=dtype)


def leaves(tree):
    return jax.tree.leaves(tree, is_leaf=lambda x: isinstance(x, torch.Tensor))


def softmax(x):
    return jax.nn.softmax(x.astype(jnp.float32)).astype(x.dtype)


def torch_softmax(x):
    return torch.softmax(x.float(), -1).to(x.dtype)


def rms_norm(x, w):
    wide = x.astype(jnp.float32)
    scaled = wide * jax.lax.rsqrt((wide * wide).mean(-1, keepdims=True) + 1e-6)
    return scaled.astype(x.dtype) * w


def torch_rms_norm(x, w):
    wide = x.float()
    return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * w


def layer_norm(x, w, c):
    wide = x.astype(jnp.float32)
    centred = wide - wide.mean(-1, keepdims=True)
    scaled = centred * jax.lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
    return scaled.astype(x.dtype) * w + c


def torch_layer_norm(x, w, c):
    return F.layer_norm(x, (x.shape[-1],), w, c)


def cross_entropy(x, t):
    logs = jax.nn.log_softmax(x.astype(jnp.float32))
    return -jnp.take_along_axis(logs, t[:, None], 1).mean()


def torch_cross_entropy(x, t):
    return F.cross_entropy(x.float(), t)


def rotary(x, cos, sin):
    one, other = jnp.split(x, 2, -1)
    return jnp.concatenate([one * cos - other * sin, other * cos + one * sin], -1)


def torch_rotary(x, cos, sin):
    one, other = x.chunk(2, -1)
    return torch.cat([one * cos - other * sin, other * cos + one * sin], -1)


def adamw(p, g, m, v):
    m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
    return p - 1e-3 * (m / (jnp.sqrt(v) + 1e-8) + 0.01 * p), m, v


def torch_adamw(p, g, m, v):
    m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
    return p - 1e-3 * (m / (v.sqrt() + 1e-8) + 0.01 * p), m, v


def classes():
    return random(M, N), torch.randint(0, N, (M,), device="cuda", dtype=torch.int32)


def heads():
    return random(4, 4096, 64, 128), random(4096, 1, 64), random(4096, 1, 64)


ROWS = {
    "softmax": (softmax, torch_softmax, lambda: (random(M, N),)),
    "rms_norm": (rms_norm, torch_rms_norm, lambda: (random(M, N), random(N))),
    "layer_norm": (layer_norm, torch_layer_norm, lambda: (random(M, N), random(N), random(N))),
    "cross-entropy": (cross_entropy, torch_cross_entropy, classes),
    "rotary": (rotary, torch_rotary, heads),
    "gelu": (jax.nn.gelu, lambda x: F.gelu(x, approximate="tanh"), lambda: (random(M, N),)),
    "swiglu": (
        lambda x, y: jax.nn.silu(x) * y,
        lambda x, y: F.silu(x) * y,
        lambda: (random(M, N), random(M, N)),
    ),
    "adamw": (
        adamw,
        torch_adamw,
        lambda: tuple(random(M, N, dtype=torch.float32).abs() for _ in range(4)),
    ),
}


def CHAINS():
    """Chains and reductions of odd shapes and layouts."""
    f = torch.float32
    a, b, c = random(4093, 4099), random(4093, 4099), random(4099)
    wide, tall = random(97, 1 << 20, dtype=f), random(1 << 20, 97, dtype=f)
    cube = random(128, 513, 1027)
    return {
        "odd rows: tanh(a) * b + c": (
            lambda a, b, c: jnp.tanh(a) * b + c, lambda a, b, c: torch.tanh(a) * b + c, (a, b, c)
        ),
        "transposed: a.T + 1": (lambda a: a.T + 1, lambda a: (a.T + 1).contiguous(), (a,)),
        "a + b.T": (
            lambda a, b: a + b.T, lambda a, b: a + b.T, (random(4096, 4096), random(4096, 4096))
        ),
        "permuted cube": (
            lambda x: jnp.transpose(x, (2, 0, 1)) * 2,
            lambda x: (x.permute(2, 0, 1) * 2).contiguous(),
            (cube,),
        ),
        "sum of all squares": (
            lambda x: (x.astype(jnp.float32) ** 2).sum(), lambda x: (x.float() ** 2).sum(), (a,)
        ),
        "column sums": (lambda x: x.sum(0), lambda x: x.sum(0), (random(M, N, dtype=f),)),
        "column maxima, tall": (lambda x: x.max(0), lambda x: x.amax(0), (tall,)),
        "row sums, long": (lambda x: x.sum(1), lambda x: x.sum(1), (wide,)),
        "argmax of odd rows": (
            lambda x: jnp.argmax(x, 1), lambda x: x.argmax(1).int(), (random(4096, 32001),)
        ),
        "softmax of 32001": (softmax, torch_softmax, (random(4096, 32001),)),
        "pad and slice": (
            lambda x: jnp.pad(x[:, 3:], ((1, 2), (0, 5))) * 2,
            lambda x: F.pad(x[:, 3:], (0, 5, 1, 2)) * 2,
            (a,),
        ),
        "embedding": (
            lambda x, t: x[t] * 2,
            lambda x, t: x[t.long()] * 2,
            (random(32001, 4096), torch.randint(0, 32001, (16384,), device="cuda").int()),
        ),
        **more_chains(),
    }  # fmt: skip


def more_chains():
    """The rest of the chains: broadcasts, gathers, sums of other dims, small and odd types."""
    f, h = torch.float32, torch.float16
    image, rows = random(32, 96, 113, 57), random(8191, 2047)
    numbers = torch.randint(0, 1 << 20, (3001, 5003), device="cuda").int()
    mask = random(2048, 3001) > 0
    return {
        "channel scales": (
            lambda x, a, b: x * a[:, None, None] + b[:, None, None],
            lambda x, a, b: x * a[:, None, None] + b[:, None, None],
            (image, random(96), random(96)),
        ),
        "sum over space": (
            lambda x: x.astype(jnp.float32).sum((2, 3)), lambda x: x.float().sum((2, 3)), (image,)
        ),
        "sum over batch and space": (
            lambda x: x.astype(jnp.float32).sum((0, 2, 3)),
            lambda x: x.float().sum((0, 2, 3)),
            (image,),
        ),
        "channels last": (
            lambda x: jnp.transpose(x, (0, 2, 3, 1)) + 1,
            lambda x: (x.permute(0, 2, 3, 1) + 1).contiguous(),
            (image,),
        ),
        "mean and variance of odd rows": (
            lambda x: (x.mean(1), x.var(1)),
            lambda x: (x.mean(1), x.var(1, correction=0)),
            (random(8191, 2047, dtype=f),),
        ),
        "logsumexp of odd rows": (
            lambda x: jax.nn.logsumexp(x.astype(jnp.float32), 1),
            lambda x: torch.logsumexp(x.float(), 1),
            (rows,),
        ),
        "normalized rows": (
            lambda x: x / jnp.sqrt((x.astype(jnp.float32) ** 2).sum(1, keepdims=True) + 1e-6),
            lambda x: x / torch.sqrt((x.float() ** 2).sum(1, keepdim=True) + 1e-6),
            (rows,),
        ),
        "maxima of 3 dims": (
            lambda x: x.max((1, 2)), lambda x: x.amax((1, 2)), (random(513, 129, 257),)
        ),
        "middle sums": (
            lambda x: x.sum(1), lambda x: x.sum(1), (random(257, 513, 129, dtype=f),)
        ),
        "selected": (
            lambda m, x: jnp.where(m, x, 0) * 3,
            lambda m, x: torch.where(m, x, 0) * 3,
            (mask, random(2048, 3001)),
        ),
        "outer sum": (
            lambda a, b: jnp.tanh(a[:, None] + b),
            lambda a, b: torch.tanh(a[:, None] + b),
            (random(5001, dtype=f), random(3003, dtype=f)),
        ),
        "integers": (
            lambda x: (x * 3 + 7) % 1001, lambda x: torch.remainder(x * 3 + 7, 1001), (numbers,)
        ),
        "f16 polynomial": (
            lambda x: ((x * 0.5 + 1) * x + 2) * x,
            lambda x: ((x * 0.5 + 1) * x + 2) * x,
            (random(4093, 4099, dtype=h),),
        ),
        "conversion": (
            lambda x: x.astype(jnp.bfloat16), lambda x: x.bfloat16(), (random(4093, 4099, dtype=f),)
        ),
        "concatenated columns": (
            lambda a, b: jnp.concatenate([a, b], 1) * 2,
            lambda a, b: torch.cat([a, b], 1) * 2,
            (random(4001, 1003), random(4001, 2005)),
        ),
        "every third": (
            lambda x: x[::3, 1::2] + 1, lambda x: x[::3, 1::2] + 1, (random(6001, 4099),)
        ),
        "turned": (
            lambda x: x[::-1, ::-1] * 2, lambda x: x.flip(0, 1) * 2, (random(4093, 4099),)
        ),
        "small: 33x65": (
            lambda a, b: jax.nn.silu(a) * b, lambda a, b: F.silu(a) * b,
            (random(33, 65), random(33, 65)),
        ),
    }  # fmt: skip


gelu_product = (
    lambda a, b, c: jax.nn.gelu(a @ b + c),
    lambda a, b, c: F.gelu(a @ b + c, approximate="tanh"),
)


def attend(q, k, v):
    scores = jnp.einsum("bhqd,bhkd->bhqk", q, k, preferred_element_type=jnp.float32)
    scores = scores / math.sqrt(q.shape[-1])
    seen = jnp.tril(jnp.ones(scores.shape[-2:], bool))
    weights = jax.nn.softmax(jnp.where(seen, scores, -jnp.inf)).astype(q.dtype)
    return jnp.einsum("bhqk,bhkd->bhqd", weights, v)


class LlamaBlock(torch.nn.Module):
    """A block of Llama-7B."""

    def __init__(self, width=4096, heads=32, hidden=11008):
        super().__init__()
        self.heads = heads
        for name in "qkvo":
            setattr(self, name, torch.nn.Linear(width, width, bias=False))
        self.gate = torch.nn.Linear(width, hidden, bias=False)
        self.up = torch.nn.Linear(width, hidden, bias=False)
        self.down = torch.nn.Linear(hidden, width, bias=False)
        self.first = torch.nn.Parameter(torch.ones(width))
        self.second = torch.nn.Parameter(torch.ones(width))

    def forward(self, x, cos, sin):
        b, t, d = x.shape
        y = torch_rms_norm(x, self.first)
        q, k, v = (
            f(y).view(b, t, self.heads, -1).transpose(1, 2) for f in (self.q, self.k, self.v)
        )
        q, k = torch_rotary(q, cos, sin), torch_rotary(k, cos, sin)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(a.transpose(1, 2).reshape(b, t, d))
        y = torch_rms_norm(x, self.second)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class DecodeBlock(LlamaBlock):
    """A block of Llama-7B for one token, with a cache of keys and values."""

    def __init__(self, width=4096, heads=32, hidden=11008, cached=2048):
        super().__init__(width, heads, hidden)
        shape = (1, heads, cached, width // heads)
        self.register_buffer("keys", torch.randn(shape))
        self.register_buffer("values", torch.randn(shape))

    def forward(self, x, cos, sin, at):
        b, t, d = x.shape
        y = torch_rms_norm(x, self.first)
        q, k, v = (
            f(y).view(b, t, self.heads, -1).transpose(1, 2) for f in (self.q, self.k, self.v)
        )
        q, k = torch_rotary(q, cos, sin), torch_rotary(k, cos, sin)
        self.keys.index_copy_(2, at, k)
        self.values.index_copy_(2, at, v)
        seen = torch.arange(self.keys.shape[2], device=x.device) <= at
        a = F.scaled_dot_product_attention(q, self.keys, self.values, attn_mask=seen[None, :])
        x = x + self.o(a.transpose(1, 2).reshape(b, t, d))
        y = torch_rms_norm(x, self.second)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


def block_loss(model, x, cos, sin, y):
    """The loss of a training step of a block."""
    return F.mse_loss(model(x, cos, sin).float(), y.float())


swiglu_pair = (
    lambda a, b, c: jax.nn.silu(a @ b) * (a @ c),
    lambda a, b, c: F.silu(a @ b) * (a @ c),
)
