"""`weft.attention(q, k, v, ...)`: attention as one op, in any framework."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass  # traced code makes them: TorchDynamo knows these only
from typing import Any, Literal

from weft.capture.jax.attention import attend_arrays
from weft.capture.torch.attention import attend_tensors
from weft.errors import WeftError
from weft.ir.location import user_location


@dataclass(frozen=True, slots=True)
class AttentionParameters:
    """The parameters of attention besides its operands; windows as in the op `weft.attention`."""

    scale: float
    left: int  # -1: unbounded
    right: int
    bottom_right: bool
    softcap: float  # 0: none


def attention(
    q: Any,
    k: Any,
    v: Any,
    *,
    mask: Any = None,
    bias: Any = None,
    causal: bool = False,
    window: tuple[int | None, int | None] | None = None,
    align: Literal["top_left", "bottom_right"] = "top_left",
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Any = None,
    logsumexp: bool = False,
) -> Any:
    """Attention of q[batch.., heads, queries, depth] to k and v[batch.., kv heads, keys, depth].

    Arrays of JAX or tensors of PyTorch, differentiable in both. Neighbouring heads share a kv
    head. Keys are hidden where the boolean `mask` is False, and where `causal` or `window` (keys
    to the left and right of a query; None leaves a side open) excludes them; queries are aligned
    with keys at the first ones, or at the last with `align="bottom_right"`. `bias` is added to
    scores, after `softcap` has bounded them; `sinks` has a score for each head that takes part in
    the softmax without a value. `scale` is 1 / sqrt(depth) by default. A query without keys gives
    0. With `logsumexp` it returns that, too.
    """
    try:
        _check(q, k, v, align, softcap)
        left, right = _sides(causal, window)
        scale = 1 / math.sqrt(max(1, int(q.shape[-1]))) if scale is None else float(scale)
        how = AttentionParameters(
            scale, left, right, align == "bottom_right", float(softcap or 0.0)
        )
        torch = sys.modules.get("torch")
        attend = attend_tensors if torch and isinstance(q, torch.Tensor) else attend_arrays
        out, lse = attend(q, k, v, mask, bias, sinks, how, logsumexp)
    except WeftError as error:
        raise error.at(user_location()) from None
    return (out, lse) if logsumexp else out


def _sides(causal: bool, window: tuple[int | None, int | None] | None) -> tuple[int, int]:
    """The keys to the left and right of a query that it sees; -1 for all."""
    sides = (None, None) if window is None else window
    if not isinstance(sides, tuple | list) or len(sides) != 2 or any(map(_is_bad, sides)):
        raise WeftError(
            f"attention: window={window!r} is not a window",
            help="give how many keys are seen to the left and to the right: window=(128, 0); "
            "None leaves a side open",
        )
    left, right = (-1 if side is None else int(side) for side in sides)
    return left, 0 if causal else right


def _is_bad(side: object) -> bool:
    return side is not None and (not isinstance(side, int) or side < 0)


def _check(q: Any, k: Any, v: Any, align: str, softcap: float | None) -> None:
    """Refuse shapes that do not fit."""
    shapes = [tuple(x.shape) for x in (q, k, v)]
    one, keys, values = shapes
    fits = (
        len(one) == len(keys) == len(values) >= 3
        and one[:-3] == keys[:-3] == values[:-3]
        and keys[-3:-1] == values[-3:-1]
        and one[-1] == keys[-1]
        and one[-3] % max(1, keys[-3]) == 0
    )
    if not fits:
        raise WeftError(
            f"attention: the shapes of q, k and v, {[*one]}, {[*keys]} and {[*values]}, do not fit",
            help="q is batch.., heads, queries, depth; k and v are batch.., kv heads, keys, depth, "
            "where heads are a multiple of kv heads",
        )
    if not q.dtype == k.dtype == v.dtype:
        raise WeftError(
            f"attention: q, k and v are {q.dtype}, {k.dtype} and {v.dtype}",
            help="give them one element type",
        )
    if align not in ("top_left", "bottom_right"):
        raise WeftError(
            f"attention: unknown align {align!r}", help="expected top_left or bottom_right"
        )
    if softcap is not None and not 0 < softcap < math.inf:
        raise WeftError(f"attention: softcap={softcap!r}", help="give a number above 0, or None")
