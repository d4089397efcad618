"""`weft.attention` in JAX and PyTorch against a float64 reference, its gradients, and its doors."""

from __future__ import annotations

import warnings

import jax
import numpy as np
import pytest
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import weft
from tests.capture.torch.models import torch
from tests.tolerance import assert_close
from weft import Mesh, P, WeftError
from weft.ops.attention import Attention

B, H, G, N, M, D = 2, 4, 2, 9, 13, 16


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(shape).standard_normal(shape).astype(np.float32)


Q, K, V = normal(B, H, N, D), normal(B, G, M, D), normal(B, G, M, D) + np.float32(0.1)
MASK = normal(B, 1, N, M) > -0.5
MASK[0, 0, 2] = False  # a query without keys
CASES = {
    "plain": {},
    "causal": {"causal": True},
    "bottom right": {"causal": True, "align": "bottom_right", "sinks": normal(H)},
    "left open": {"window": (None, 1)},
    "right open": {"window": (3, None), "align": "bottom_right"},
    "mask": {"mask": MASK, "causal": True},
    "all": {
        "mask": MASK[:, :, :1], "bias": normal(1, H, N, M), "softcap": 1.5, "window": (4, 2),
        "sinks": normal(H), "scale": 0.3,
    },
}  # fmt: skip


def reference(words) -> tuple[np.ndarray, np.ndarray]:
    """The result and its logsumexp, in float64."""
    left, right = (-1 if side is None else side for side in words.get("window", (None, None)))
    op = Attention(
        words.get("scale", 1 / 4), left, 0 if words.get("causal") else right,
        words.get("align") == "bottom_right", "mask" in words, "bias" in words, True,
        words.get("softcap", 0.0),
    )  # fmt: skip
    pairs = [words[name] for name in ("mask", "bias") if name in words]
    out, lse = op.reference(*[x.astype(np.float64) for x in (Q, K, V)], *pairs)
    if "sinks" in words:
        sink = words["sinks"].astype(np.float64)[:, None]
        out, lse = out / (1 + np.exp(sink - lse))[..., None], np.logaddexp(lse, sink)
    return out, lse


def in_torch(words):
    return {n: torch.from_numpy(x) if isinstance(x, np.ndarray) else x for n, x in words.items()}


def kernels(compiled, word: str = "attention_") -> bool:
    return word in compiled.text("tiled")


@pytest.mark.parametrize("door", ["jax", "torch"])
@pytest.mark.parametrize("name", CASES)
def test_every_form_is_one_kernel_and_right(name, door):
    words = CASES[name] if door == "jax" else in_torch(CASES[name])
    args = (Q, K, V) if door == "jax" else tuple(map(torch.from_numpy, (Q, K, V)))

    def fn(q, k, v):
        return weft.attention(q, k, v, logsumexp=True, **words)

    wanted = reference(CASES[name])
    for how in ({}, {"mesh": Mesh(x=2, y=4), "in_shardings": P("x", "y")}):
        compiled = weft.compile(fn, *args, **how)
        assert kernels(compiled)
        for made, want in zip(compiled(*args), wanted, strict=True):
            assert_close(np.asarray(made), want.astype(np.float32), 64, least=1e-2)
    for made, want in zip(fn(*args), wanted, strict=True):  # eager
        assert_close(np.asarray(made), want.astype(np.float32), 64, least=1e-2)


@pytest.mark.parametrize("name", ["causal", "mask", "all"])
def test_gradients_agree_in_both_frameworks(name):
    words = CASES[name]
    tensors = [torch.from_numpy(x.copy()).requires_grad_() for x in (Q, K, V)]
    weft.attention(*tensors, **in_torch(words)).square().sum().backward()

    def loss(q, k, v):
        return (weft.attention(q, k, v, **words) ** 2).sum()

    slope = jax.grad(loss, argnums=(0, 1, 2))
    compiled = weft.compile(slope, Q, K, V, mesh=Mesh(x=2), in_shardings=P("x"))
    assert kernels(compiled, "attention_backward") == (name != "all")  # softcap has none
    assert not compiled.collectives()
    eager, made = slope(Q, K, V), compiled(Q, K, V)
    for theirs, ours, mine in zip(tensors, eager, made, strict=True):
        assert_close(np.asarray(ours), theirs.grad.numpy(), 256, least=1e-2)
        assert_close(np.asarray(mine), theirs.grad.numpy(), 256, least=1e-2)


def test_the_gradient_of_the_bias_sinks_and_logsumexp():
    bias, sinks = normal(1, H, N, M), normal(H)

    def loss(attend, q, bias, sinks):
        out, lse = attend(q, K, V, bias=bias, sinks=sinks, logsumexp=True)
        return (out * out).sum() + (lse * lse).sum()

    made = jax.grad(lambda *x: loss(weft.attention, *x), argnums=(0, 1, 2))(Q, bias, sinks)
    tensors = [torch.from_numpy(x.copy()).requires_grad_() for x in (Q, bias, sinks)]

    def attend(q, k, v, **words):
        return weft.attention(q, torch.from_numpy(k), torch.from_numpy(v), **words)

    loss(attend, *tensors).backward()
    step = 1e-4  # by differences in float64
    rest = [x.astype(np.float64) for x in (K, V)]
    for n, (mine, theirs) in enumerate(zip(made, tensors, strict=True)):
        assert_close(np.asarray(mine), theirs.grad.numpy(), 256, least=1e-2)
        way = np.random.default_rng(n).standard_normal(mine.shape)
        sides = []
        for sign in (1, -1):
            given = [torch.from_numpy(x.astype(np.float64)) for x in (Q, bias, sinks)]
            given[n] = given[n] + sign * step * torch.from_numpy(way)
            sides.append(float(loss(lambda q, k, v, **w: attend(q, *rest, **w), *given)))
        slope = (sides[0] - sides[1]) / (2 * step)
        assert (
            abs(slope - float((np.asarray(mine, np.float64) * way).sum()))
            < 1e-3 * abs(slope) + 1e-3
        )


def test_it_agrees_with_jax_and_torch():
    q = normal(B, H, N, D)
    ours = weft.attention(q, K[:, :, :N], V[:, :, :N], causal=True)
    turned = [x.swapaxes(1, 2) for x in (q, K[:, :, :N], V[:, :, :N])]
    theirs = jax.nn.dot_product_attention(*turned, is_causal=True).swapaxes(1, 2)
    assert_close(np.asarray(ours), np.asarray(theirs), 64, least=1e-2)
    tensors = [torch.from_numpy(x) for x in (q, K[:, :, :N], V[:, :, :N])]
    scaled = torch.nn.functional.scaled_dot_product_attention
    theirs = scaled(*tensors, is_causal=True, enable_gqa=True)
    assert_close(weft.attention(*tensors, causal=True).numpy(), theirs.numpy(), 64, least=1e-2)


class Scaled(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = (torch.nn.Parameter(torch.from_numpy(x.copy())) for x in (Q, K, V))

    def forward(self, x):
        scaled = torch.nn.functional.scaled_dot_product_attention
        return scaled(self.q * x, self.k, self.v, enable_gqa=True, is_causal=True).square().sum()


def test_training_with_scaled_dot_product_attention_is_fused():
    model, other = Scaled(), Scaled()
    step = weft.train_step(model, None, torch.optim.SGD(model.parameters(), lr=0.1))
    step(torch.ones(()))
    assert kernels(step, "attention_backward")
    other(torch.ones(())).backward()
    wanted = other.k - 0.1 * other.k.grad
    assert_close(model.k.detach().numpy(), wanted.detach().numpy(), 64, least=1e-2)


def test_torch_compile_has_gradients():
    tensors = [torch.from_numpy(x.copy()).requires_grad_() for x in (Q, K, V)]

    def fn(q, k, v):
        return weft.attention(q, k, v, causal=True)

    torch.compile(fn, backend="weft", fullgraph=True)(*tensors).square().sum().backward()
    found, tensors[0].grad = tensors[0].grad, None
    fn(*tensors).square().sum().backward()
    assert_close(found.numpy(), tensors[0].grad.numpy(), 64, least=1e-2)


def test_export_keeps_the_op_with_symbolic_sizes():
    class Attend(torch.nn.Module):
        def forward(self, q, k, v):
            return weft.attention(q, k, v, causal=True)

    rows, keys, batch = (torch.export.Dim(n) for n in ("rows", "keys", "batch"))
    shapes = ({0: batch, 2: rows}, {0: batch, 2: keys}, {0: batch, 2: keys})
    args = tuple(map(torch.from_numpy, (Q, K, V)))
    made = torch.export.export(Attend(), args, dynamic_shapes=shapes)
    assert "torch.ops.weft.attention.default" in str(made.graph_module.code)
    other = (torch.randn(3, H, 5, D), torch.randn(3, G, 7, D), torch.randn(3, G, 7, D))
    torch.testing.assert_close(made.module()(*other), Attend()(*other))


DOCUMENT = torch.tensor([0] * 7 + [1] * 9)
SLOPES = torch.tensor([0.5, 0.25, 0.125, 0.0625])
FLEX = {
    "none": (None, None, True),
    "sliding": (None, lambda b, h, i, j: (i >= j) & (i - j < 4), True),
    "documents": (None, lambda b, h, i, j: (DOCUMENT[i] == DOCUMENT[j]) & (i >= j), True),
    "softcap": (lambda s, b, h, i, j: 20 * torch.tanh(s / 20), None, True),
    "relative": (lambda s, b, h, i, j: s + (i - j), None, True),
    "alibi": (lambda s, b, h, i, j: s - SLOPES[h] * (i - j), None, False),
}


@pytest.mark.parametrize("name", FLEX)
def test_flex_attention_is_one_kernel_where_its_form_is_known(name):
    score, mask, is_one = FLEX[name]
    q, k = torch.from_numpy(normal(2, 4, 16, 8)), torch.from_numpy(normal(2, 2, 16, 8))
    blocks = mask and create_block_mask(mask, None, None, 16, 16, device="cpu")

    def fn(q, k):
        return flex_attention(q, k, k, score, blocks, enable_gqa=True, return_lse=True)

    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # PyTorch's, of running it uncompiled
        wanted = fn(q, k)
        compiled = weft.compile(fn, q, k, mesh=Mesh(x=2), in_shardings=P("x"))
    assert kernels(compiled) == is_one
    for made, want in zip(compiled(q, k), wanted, strict=True):
        assert_close(made.numpy(), want.numpy(), 64, least=1e-2)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"window": (-1, 2)}, "is not a window"),
        ({"align": "middle"}, "unknown align 'middle'"),
        ({"softcap": 0.0}, "softcap=0.0"),
    ],
)
def test_bad_words_are_refused_at_the_line(words, message):
    with pytest.raises(WeftError, match=message) as caught:
        weft.attention(Q, K, V, **words)
    assert "test_attention.py" in str(caught.value)
    with pytest.raises(WeftError, match="do not fit"):
        weft.attention(Q, K, V[:, :1])


@pytest.mark.parametrize(("kept", "times", "masked"), [(2, 2, False), (1, 3, True), (2, 3, True)])
def test_repeated_heads_are_read_and_not_copied(kept: int, times: int, masked: bool):
    """As Hugging Face's models repeat the heads of keys and values before attention."""

    def repeated(x: torch.Tensor) -> torch.Tensor:
        batch, heads, length, depth = x.shape
        many = x[:, :, None].expand(batch, heads, times, length, depth)
        return many.reshape(batch, heads * times, length, depth)

    def fn(q, k, v, mask):
        given = {"attn_mask": mask} if masked else {"is_causal": True}
        made = torch.nn.functional.scaled_dot_product_attention(
            q, repeated(k), repeated(v), **given
        )
        return made.transpose(1, 2).flatten(2)

    torch.manual_seed(0)
    q = torch.randn(2, kept * times, 5, 4)
    k, v = torch.randn(2, kept, 7, 4), torch.randn(2, kept, 7, 6)
    mask = torch.randn(2, 1, 5, 7) > -1
    compiled = weft.compile(fn, q, k, v, mask)
    torch.testing.assert_close(compiled(q, k, v, mask), fn(q, k, v, mask))
    steps = [line.split()[:2] for line in compiled.text("tiled").splitlines()]
    launches = [name for word, name in (s for s in steps if len(s) == 2) if word == "launch"]
    assert [name.partition("_")[0] for name in launches] == ["attention"]
