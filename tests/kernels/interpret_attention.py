"""What an attention kernel means, in numpy, in double precision: slow and plain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import as_strided

from weft.ir.types import Array
from weft.kernels.attention import Access, Attention


def interpret_attention(kernel: Attention, arrays: Sequence[Array]) -> tuple[Array, ...]:
    """The outputs of a kernel, given its inputs; 0 where nothing is written."""
    given = iter(arrays)
    buffers = [
        np.zeros(o.shape, o.dtype.numpy) if o.output else np.ascontiguousarray(next(given))
        for o in kernel.operands
    ]
    with np.errstate(all="ignore"):
        if kernel.gradients is None:
            _forward(kernel, buffers)
        else:
            _backward(kernel, buffers)
    return tuple([b for o, b in zip(kernel.operands, buffers, strict=True) if o.output])


@dataclass(frozen=True, slots=True)
class _Scores:
    """Scores of all pairs, those that a window leaves out, and those that a mask hides."""

    scores: Array
    unseen: Array
    hidden: Array


def _view(
    kernel: Attention, buffers: Sequence[Array], at: Access, rows: int, columns: int
) -> Array:
    """The elements of an operand, by outer point, row and column."""
    flat = buffers[at.operand].reshape(-1)[at.offset :]
    strides = [s * flat.itemsize for s in (*at.outer, at.row, at.column)]
    return as_strided(flat, (*kernel.outer, rows, columns), strides)


def _read(
    kernel: Attention, buffers: Sequence[Array], at: Access, rows: int, columns: int
) -> Array:
    return _view(kernel, buffers, at, rows, columns).astype(np.float64)


def _scores(kernel: Attention, buffers: Sequence[Array]) -> _Scores:
    k = kernel
    q = _read(k, buffers, k.q, k.queries, k.depth)
    keys = _read(k, buffers, k.k, k.keys, k.depth)
    scores = k.scale * (q @ np.swapaxes(keys, -1, -2))
    if k.softcap:
        scores = k.softcap * np.tanh(scores / k.softcap)
    if k.bias is not None:
        scores = scores + k.bias_scale * _read(k, buffers, k.bias, k.queries, k.keys)
    hidden = np.zeros(scores.shape, bool)
    if k.mask is not None:
        hidden |= _view(k, buffers, k.mask.access, k.queries, k.keys) == k.mask.hides
        scores = np.where(hidden, k.mask.fill, scores)
    unseen = np.ones((k.queries, k.keys), bool)
    for i in range(k.queries):
        unseen[i, list(k.window.visible_keys(i, k.keys))] = False
    unseen = np.broadcast_to(unseen, scores.shape)
    return _Scores(np.where(unseen, -np.inf, scores), unseen, hidden)


def _softmax(kernel: Attention, scores: Array) -> tuple[Array, Array]:
    """The probabilities and the logsumexp."""
    top = scores.max(axis=-1, keepdims=True, initial=-np.inf)
    top = np.where(top == -np.inf, 0.0, top)
    powers = np.exp(scores - top)
    total = powers.sum(axis=-1, keepdims=True)
    empty = np.where(total == 0.0, np.nan if kernel.empty == "nan" else 0.0, powers / total)
    return empty, (top + np.log(total))[..., 0]


def _forward(kernel: Attention, buffers: Sequence[Array]) -> None:
    k = kernel
    weights, lse = _softmax(k, _scores(k, buffers).scores)
    out = weights @ _read(k, buffers, k.v, k.keys, k.value_depth)
    _view(k, buffers, k.out, k.queries, k.value_depth)[...] = out.astype(k.dtype(k.out).numpy)
    if k.lse is not None:
        to = _view(k, buffers, k.lse, k.queries, 1)
        to[..., 0] = lse.astype(k.dtype(k.lse).numpy)


def _backward(kernel: Attention, buffers: Sequence[Array]) -> None:
    k, g = kernel, kernel.gradients
    assert g is not None
    found = _scores(k, buffers)
    weights, _ = _softmax(k, found.scores)
    dout = _read(k, buffers, g.out, k.queries, k.value_depth)
    out = _read(k, buffers, k.out, k.queries, k.value_depth)
    pulls = dout @ np.swapaxes(_read(k, buffers, k.v, k.keys, k.value_depth), -1, -2)
    slopes = weights * (pulls - (out * dout).sum(axis=-1, keepdims=True))
    slopes = np.where(found.hidden | found.unseen & (weights == 0.0), 0.0, slopes)
    across = np.swapaxes(slopes, -1, -2)
    scales = [k.scale if s is None else s for s in (g.q_scale, g.k_scale)]
    made = [
        (g.q, k.queries, k.depth, scales[0] * (slopes @ _read(k, buffers, k.k, k.keys, k.depth))),
        (g.k, k.keys, k.depth, scales[1] * (across @ _read(k, buffers, k.q, k.queries, k.depth))),
        (g.v, k.keys, k.value_depth, np.swapaxes(weights, -1, -2) @ dout),
    ]
    if g.bias is not None:
        made.append((g.bias, k.queries, k.keys, k.bias_scale * slopes))
    for at, rows, columns, values in made:
        summed = tuple(n for n, s in enumerate(at.outer) if not s)
        total = values.sum(axis=summed, keepdims=True)
        sizes = tuple(1 if n in summed else size for n, size in enumerate(k.outer))
        flat = buffers[at.operand].reshape(-1)[at.offset :]
        strides = [s * flat.itemsize for s in (*at.outer, at.row, at.column)]
        as_strided(flat, (*sizes, rows, columns), strides)[...] = total.astype(flat.dtype)
