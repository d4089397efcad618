"""Layers that PyTorch computes by one op."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def normalized(
    x: Any, weight: Any, bias: Any, mean: Any, variance: Any, momentum: float, eps: float
) -> tuple[Any, Any, Any]:
    """A batch norm in evaluation; PyTorch's own ends in an op that changes the statistics."""
    from torch._decomp.decompositions import native_batch_norm_helper

    made, save_mean, save_deviation, *_ = native_batch_norm_helper(
        x, weight, bias, mean, variance, False, momentum, eps, True
    )
    return made, save_mean, save_deviation


def encoder_layer(
    x: Any,
    width: int,
    heads: int,
    qkv_weight: Any,
    qkv_bias: Any,
    projection: Any,
    projection_bias: Any,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    norm_weight_1: Any,
    norm_bias_1: Any,
    norm_weight_2: Any,
    norm_bias_2: Any,
    up: Any,
    up_bias: Any,
    down: Any,
    down_bias: Any,
    mask: Any = None,
    mask_type: int | None = None,
) -> Any:
    """The layer of `torch.nn.TransformerEncoder` in evaluation; masked keys are not seen."""
    import torch
    from torch.nn import functional

    if mask is not None:
        mask = ~mask.to(torch.bool)
        # 0: queries x keys, 1: batch x keys, 2: both, for each head.
        mask = mask[:, None, None, :] if mask_type == 1 else mask

    def attended(x: Any) -> Any:
        parts = functional.linear(x, qkv_weight, qkv_bias).chunk(3, -1)
        q, k, v = [part.unflatten(-1, (heads, -1)).transpose(-2, -3) for part in parts]
        made = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        made = made.transpose(-2, -3).flatten(-2)
        return functional.linear(made, projection, projection_bias)

    def fed_forward(x: Any) -> Any:
        inner = functional.linear(x, up, up_bias)
        inner = functional.gelu(inner) if use_gelu else functional.relu(inner)
        return functional.linear(inner, down, down_bias)

    def first(x: Any) -> Any:
        return functional.layer_norm(x, (width,), norm_weight_1, norm_bias_1, eps)

    def second(x: Any) -> Any:
        return functional.layer_norm(x, (width,), norm_weight_2, norm_bias_2, eps)

    if norm_first:
        x = x + attended(first(x))
        return x + fed_forward(second(x))
    x = first(x + attended(x))
    return second(x + fed_forward(x))


DECOMPOSITIONS: dict[str, Callable[..., Any]] = {
    "_native_batch_norm_legit_no_training": normalized,
    "_transformer_encoder_layer_fwd": encoder_layer,
}
