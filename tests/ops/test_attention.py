"""What attention means at its edges: windows, alignment, shared heads, queries that see nothing."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.tolerance import assert_close
from weft.errors import WeftError
from weft.evaluate import evaluate
from weft.ir.module import Module
from weft.ir.types import Array, tensor, type_of
from weft.ops.attention import Attention


def normal(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def qkv(queries: int, keys: int, heads: int = 2, kv_heads: int = 2) -> list[Array]:
    return [normal(3, heads, queries, 8), *(normal(3, kv_heads, keys, 8, seed=n) for n in (1, 2))]


def by_hand(q: Array, k: Array, v: Array, seen: Array, scale: float) -> Array:
    """Query by query, key by key."""
    out = np.zeros((*q.shape[:-1], v.shape[-1]))
    for b, h, i in np.ndindex(q.shape[:-1]):
        keys = np.flatnonzero(seen[i])
        if keys.size:
            scores = scale * (k[b, h, keys].astype(float) @ q[b, h, i].astype(float))
            weights = np.exp(scores - scores.max())
            out[b, h, i] = weights @ v[b, h, keys] / weights.sum()
    return out.astype(np.float32)


@pytest.mark.parametrize("bottom_right", [False, True])
@pytest.mark.parametrize(("left", "right"), [(-1, -1), (-1, 0), (2, -1), (3, 1), (0, 0)])
@pytest.mark.parametrize(("queries", "keys"), [(6, 6), (4, 9), (9, 4)])
def test_windows_are_inclusive(bottom_right: bool, left: int, right: int, queries: int, keys: int):
    arrays = qkv(queries, keys)
    shift = keys - queries if bottom_right else 0
    seen = np.zeros((queries, keys), bool)
    for i in range(queries):
        first = 0 if left < 0 else max(0, i + shift - left)
        last = keys - 1 if right < 0 else min(keys - 1, i + shift + right)
        seen[i, first : max(0, last + 1)] = True
    (out,) = Attention(0.5, left, right, bottom_right).reference(*arrays)
    assert_close(out, by_hand(*arrays, seen, 0.5), 16, least=1.0)


def test_causal_is_what_torch_means():
    torch = pytest.importorskip("torch")
    arrays = qkv(5, 8)
    (out,) = Attention(1 / math.sqrt(8), right=0).reference(*arrays)
    tensors = [torch.from_numpy(a) for a in arrays]
    theirs = torch.nn.functional.scaled_dot_product_attention(*tensors, is_causal=True)
    assert_close(out, theirs.numpy(), 16, least=1.0)


def test_a_query_that_sees_nothing_gives_zeros_and_minus_infinity():
    arrays = [*qkv(3, 4), np.array([[True] * 4, [False] * 4, [True] * 4])[None, None]]
    out, lse = Attention(1.0, masked=True, logsumexp=True).reference(*arrays)
    assert not out[:, :, 1].any() and out[:, :, 0].all()
    assert (lse[:, :, 1] == -math.inf).all() and np.isfinite(lse[:, :, 0]).all()


def test_the_logsumexp_is_natural():
    q, k, v = qkv(3, 4)
    _, lse = Attention(0.25, logsumexp=True).reference(q, k, v)
    scores = 0.25 * q.astype(float) @ np.swapaxes(k.astype(float), -1, -2)
    assert_close(lse, np.log(np.exp(scores).sum(-1)).astype(np.float32), 16, least=1.0)


def test_neighbouring_heads_share_keys():
    q, k, v = qkv(5, 6, heads=6, kv_heads=2)
    (out,) = Attention(0.5).reference(q, k, v)
    (full,) = Attention(0.5).reference(q, np.repeat(k, 3, 1), np.repeat(v, 3, 1))
    assert_close(out, full)


def test_the_decomposition_means_the_same():
    arrays = [*qkv(5, 7, heads=4), normal(1, 4, 1, 7, seed=9) > 0, normal(3, 1, 5, 7, seed=8)]
    op = Attention(0.4, 4, 2, True, True, True, True, 1.5)
    main = op.decomposition("main", tuple(type_of(a) for a in arrays), {})
    for got, want in zip(
        evaluate(Module({"main": main}), *arrays), op.reference(*arrays), strict=True
    ):
        assert_close(got, want, 16, least=1.0)


@pytest.mark.parametrize(
    ("types", "problem"),
    [
        ([tensor(2, 4, 8), tensor(2, 5, 8)], "takes 3 operands"),
        ([tensor(2, 4, 8), tensor(2, 5, 8), tensor(2, 6, 8)], "do not fit"),
        ([tensor(3, 4, 8), tensor(2, 5, 8), tensor(2, 5, 8)], "do not fit"),
        ([tensor(2, 4, 8), tensor(2, 5, 8), tensor(2, 5, 8, dtype="bf16")], "one element type"),
    ],
)
def test_what_does_not_fit_is_refused(types: list[object], problem: str):
    with pytest.raises(WeftError) as error:
        Attention(1.0).infer(*types)  # type: ignore[arg-type]
    assert problem in str(error.value)


@pytest.mark.parametrize("outer", [(), (2,), (2, 3)])
@pytest.mark.parametrize("shared", [1, 2])
def test_any_number_of_batch_dims(outer: tuple[int, ...], shared: int):
    """Masks, biases, softcaps and logsumexps, by einsum and by the decomposition."""
    q = normal(*outer, 2 * shared, 5, 8)
    k, v = normal(*outer, 2, 7, 8, seed=1), normal(*outer, 2, 7, 3, seed=2)
    mask = normal(*outer, 1, 5, 7, seed=3) > -1
    bias = normal(*[1] * len(outer), 2 * shared, 1, 7, seed=4)
    op = Attention(0.7, left=3, masked=True, biased=True, logsumexp=True, softcap=1.5)
    keys, values = (np.repeat(x.astype(float), shared, -3) for x in (k, v))
    scores = (
        1.5 * np.tanh(0.7 / 1.5 * np.einsum("...qd,...kd->...qk", q.astype(float), keys)) + bias
    )
    seen = mask & (np.arange(7) - np.arange(5)[:, None] >= -3)
    powers = np.where(seen, np.exp(scores), 0)
    total = powers.sum(-1, keepdims=True)
    made = [np.einsum("...qk,...kv->...qv", powers / total, values), np.log(total)[..., 0]]
    arrays = (q, k, v, mask, bias)
    function = op.decomposition("main", tuple(map(type_of, arrays)), {})
    for found in (op.reference(*arrays), evaluate(Module({"main": function}), *arrays)):
        for ours, theirs in zip(found, made, strict=True):
            assert_close(ours, theirs.astype(np.float32), 64, least=1.0)


def test_the_work_of_attention():
    types = (tensor(2, 4, 5, 8), tensor(2, 2, 7, 8), tensor(2, 2, 7, 3))
    plain = Attention(1.0).work(types, (tensor(2, 4, 5, 3),))
    assert plain.flops == 2 * (2 * 4 * 5 * 7) * (8 + 3) and plain.transcendentals == 2 * 4 * 5 * 7
    assert plain.bytes == 4 * sum(t.size for t in (*types, tensor(2, 4, 5, 3)))
    assert Attention(1.0, softcap=2.0).work(types, ()).transcendentals == 2 * 2 * 4 * 5 * 7
