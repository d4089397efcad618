"""Attention beside torch and XLA, forward and backward: rows of a table for benchmarks/cpu.py.

Kernels alone: the forward reads q, k, v and writes out; the backward also reads out, the
logsumexp and the gradient of out, and writes those of q, k and v. Torch's is its fused SDPA, XLA's
what JAX makes of `dot_product_attention` (the backward with its residuals at hand).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np

from benchmarks.cpu_rows import Row, race
from tests.kernels.attention_cases import Sizes, backward, forward, inputs
from weft.emit.llvm.attention.attention import emit_attention
from weft.emit.llvm.jit.engine import load
from weft.emit.llvm.pool.commands import CommandList
from weft.emit.llvm.pool.pool import aligned
from weft.ir.types import Array, dtype
from weft.kernels.attention import Attention, Window

SHAPES = ((16, 16, 512, 64), (1, 16, 2048, 64), (32, 16, 64, 16))  # batch, heads, length, depth
Side = Callable[[], object]


def rows(quick: bool) -> Iterator[Row]:
    """The table: every shape, window and dtype, forward and backward."""
    for kind in ("f32", "bf16"):
        for shape in SHAPES[1:] if quick else SHAPES:
            for name, window in windows(shape[2]).items():
                yield from both_rows(kind, shape, name, window, quick)


def windows(length: int) -> dict[str, Window]:
    """None, causal, and the last quarter or 128 keys."""
    near = min(128, length // 4)
    return {
        "full": Window(),
        "causal": Window(None, 0),
        f"window {near}": Window(near - 1, 0),
    }


def both_rows(
    kind: str, shape: tuple[int, ...], name: str, window: Window, quick: bool
) -> Iterator[Row]:
    """Forward and backward of one case, all sides taking turns."""
    batch, heads, length, depth = shape
    sizes = Sizes((batch, heads), (False, False), length, length, depth, depth)
    kernel = forward(sizes, dtype(kind), lse=True, window=window)
    arrays = [held(a) for a in inputs(kernel)]
    arrays[0] = held(arrays[0])
    out = [empty(kernel, n) for n, o in enumerate(kernel.operands) if o.output]
    q, k, v = (a.reshape(-1)[-math.prod(shape) :].reshape(shape) for a in arrays[:3])
    dout = held(np.random.default_rng(9).standard_normal(shape).astype(q.dtype))
    second = backward(kernel)
    gradients = [empty(second, n) for n, o in enumerate(second.operands) if o.output]
    torch_forward, torch_backward = torch_sides([q, k, v, dout], window)
    xla_forward, xla_backward = xla_sides([q, k, v, dout], window)
    for way, one, ours, torch_side, xla_side in (
        ("forward", kernel, [*arrays, *out], torch_forward, xla_forward),
        ("backward", second, [*arrays, *out, dout, *gradients], torch_backward, xla_backward),
    ):
        sides = {"weft": weft_side(one, ours), "torch": torch_side, "XLA": xla_side}
        times = race(sides, rounds=3 if quick else 5)
        weft = times.pop("weft")
        text = "x".join(map(str, shape))
        yield Row("Attention", f"{way} {name} {kind}", text, weft, times, flops=one.flops)


def held(array: Array) -> Array:
    """A copy that begins at a multiple of 64 bytes."""
    made = aligned(array.nbytes).view(array.dtype).reshape(array.shape)
    made[...] = array
    return made


def empty(kernel: Attention, n: int) -> Array:
    """A buffer for an operand."""
    operand = kernel.operands[n]
    return held(np.zeros(operand.shape, operand.dtype.numpy))


def weft_side(kernel: Attention, arrays: list[Array]) -> Side:
    """The kernel on buffers that are there."""
    (loaded,) = load([emit_attention(kernel)])
    commands = CommandList()
    commands.kernel(loaded, [a.ctypes.data for a in arrays])

    def run(_keep: list[Array] = arrays) -> None:
        commands.run()

    return run


def torch_sides(arrays: list[Array], window: Window) -> tuple[Side, Side]:
    """Torch's scaled_dot_product_attention, and the gradients of it."""
    import torch
    from torch.nn.functional import scaled_dot_product_attention

    half = arrays[0].dtype.itemsize == 2
    tensors = [
        torch.from_numpy(a.view(np.int16)).view(torch.bfloat16) if half else torch.from_numpy(a)
        for a in arrays
    ]
    *inputs_, dout = tensors
    mask = None
    if window.left is not None:
        apart = torch.arange(len(arrays[0][0, 0]))
        apart = apart[None] - apart[:, None]
        mask = (apart <= 0) & (apart >= -window.left)
    causal = window.right == 0 and mask is None

    def run() -> object:
        with torch.no_grad():
            return scaled_dot_product_attention(*inputs_, attn_mask=mask, is_causal=causal)

    leaves = [x.clone().requires_grad_() for x in inputs_]
    out = scaled_dot_product_attention(*leaves, attn_mask=mask, is_causal=causal)
    return run, lambda: torch.autograd.grad(out, leaves, dout, retain_graph=True)


def xla_sides(arrays: list[Array], window: Window) -> tuple[Side, Side]:
    """What XLA makes of JAX's attention, and of its derivative."""
    import jax
    import jax.numpy as jnp

    *qkv, dout = (jnp.asarray(np.ascontiguousarray(a.transpose(0, 2, 1, 3))) for a in arrays)
    near = None if window.left is None else (window.left, 0)

    def attend(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        causal = window.right == 0
        return jax.nn.dot_product_attention(
            q, k, v, is_causal=causal, local_window_size=near, implementation="xla"
        )

    first = jax.jit(attend)
    _, pull = jax.jit(lambda *x: jax.vjp(attend, *x))(*qkv)
    second = jax.jit(lambda pull, g: pull(g))
    return (
        lambda: first(*qkv).block_until_ready(),
        lambda: jax.block_until_ready(second(pull, dout)),
    )
