"""flex_attention: its common masks and scores as `weft::attention`, others in ATen ops.

What a mask or a score function means is found by calling it on numbers: windows, softcaps and
biases are recognized however they are written.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from weft.capture.torch.attention import plain_attention
from weft.records import dataclass

_PROBES = (-6.0, -0.75, 0.5, 8.0)


@dataclass(frozen=True, slots=True)
class FlexMeaning:
    """The facts of a call that are known before it is traced."""

    window: tuple[int, int, bool] | None  # left, right, bottom_right; None: a mask of any form
    softcap: float | None  # None: a score function of another form
    biased: bool = False
    asks_max: bool = False  # whether the largest scores are read


def flex_meaning(node: Any, module: Any) -> FlexMeaning:
    """The meaning of a node of the higher-order op, by calling its functions on numbers."""
    q, k = (node.args[n].meta["val"] for n in range(2))
    score, mask = (getattr(module, each.target) for each in (node.args[3], node.args[4][-1]))
    asks = any(user.args[1] == 2 and user.users for user in node.users)
    static = all(isinstance(size, int) for size in (*q.shape, *k.shape))
    window = None
    if static and not node.args[8]:
        window = _window_of(mask, q.shape[-2], k.shape[-2])
    softcap, biased = (None, False) if node.args[7] else _score_of(score)
    return FlexMeaning(window, softcap, biased, asks)


def _window_of(mask: Any, queries: int, keys: int) -> tuple[int, int, bool] | None:
    """The window that a mask of positions is, if it is one."""
    import torch

    rows, columns = torch.arange(queries)[:, None], torch.arange(keys)[None]
    zero = torch.zeros((), dtype=torch.int64)
    points = ((zero, zero), (zero + 1, zero), (zero, zero + 1))
    seen = [_called(mask, b, h, rows, columns).expand(queries, keys) for b, h in points]
    if not all(torch.equal(each, seen[0]) for each in seen) or not bool(seen[0].any()):
        return None
    apart = columns - rows
    low, high = int(apart[seen[0]].min()), int(apart[seen[0]].max())
    if not torch.equal(seen[0], (apart >= low) & (apart <= high)):
        return None
    # A bound that no pair of positions reaches past is open.
    is_open = (low == 1 - queries, high == keys - 1)
    # The diagonal begins at the first query and key, or ends at the last ones.
    for shift in (0, keys - queries):
        left, right = (-1 if is_open[0] else shift - low), (-1 if is_open[1] else high - shift)
        if (is_open[0] or left >= 0) and (is_open[1] or right >= 0):
            return left, right, shift != 0
    return None


def _score_of(score: Any) -> tuple[float | None, bool]:
    """The softcap of a score function (0: none), and whether it adds a bias."""
    import torch

    index = [torch.tensor(n) for n in (0, 1, 2, 3)]
    scores = torch.tensor(_PROBES, dtype=torch.float64)
    places = [index, [index[1], index[0], index[3], index[1]]]
    outputs = [_called(score, scores, *place) for place in places]
    if all(torch.allclose(x - scores, (x - scores)[:1].expand_as(x)) for x in outputs):
        far = _called(score, torch.tensor(0.0, dtype=torch.float64), *index)
        return 0.0, bool((far != 0) | (outputs[0] != outputs[1]).any()) or _reads_index(score)
    # tanh is 1 there, so that only the cap is left.
    cap = float(_called(score, torch.tensor(1e9, dtype=torch.float64), *index))
    curve = cap * torch.tanh(scores / cap) if cap > 0 else None
    if curve is not None and all(torch.allclose(x, curve, rtol=1e-5) for x in outputs):
        return (cap, False) if not _reads_index(score) else (None, False)
    return None, False


def _reads_index(score: Any) -> bool:
    """Whether a score function reads batch, head or positions."""
    inputs = [node for node in score.graph.nodes if node.op == "placeholder"]
    return any(node.users for node in inputs[1:5])


def flex_attention(
    attend: Callable[..., Any],
    meaning: FlexMeaning,
    query: Any,
    key: Any,
    value: Any,
    score: Any,
    block_mask: Any,
    scale: float,
    options: Any,
    score_buffers: Any = (),
    mask_buffers: Any = (),
) -> tuple[Any, Any, Any]:
    """The result, its logsumexp in base 2, and the largest scores."""
    import torch

    batch, heads, queries = query.shape[:3]
    keys = key.shape[-2]
    sizes = (batch, heads, queries, keys)
    place = [
        torch.arange(size, device=query.device).reshape([-1 if d == n else 1 for d in range(4)])
        for n, size in enumerate(sizes)
    ]
    mask = None
    if meaning.window is None:
        mask = _over_pairs(_called(block_mask[-1], *place, *mask_buffers))
    left, right, bottom_right = meaning.window or (-1, -1, False)
    if meaning.softcap is None or meaning.asks_max:
        window = (left, right, bottom_right)
        return _spelled(query, key, value, score, place, mask, window, scale, score_buffers)
    bias = None
    if meaning.biased:
        zero = torch.zeros((), dtype=torch.float32, device=query.device)
        bias = _over_pairs(_called(score, zero, *place))
    out, lse = attend(
        query, key, value, mask, bias, None, scale, left, right, bottom_right, meaning.softcap
    )
    # Nothing reads the largest scores here (`asks_max`): lse fills their place.
    return out, lse / math.log(2), lse


def _called(function: Any, *args: Any) -> Any:
    """A mask or score function on index tensors that broadcast against each other."""
    import torch

    class Indexing(torch.fx.Interpreter):  # type: ignore[misc]
        """An interpreter with reads of captured tensors as plain indexing."""

        def call_function(self, target: Any, given: Any, words: Any) -> Any:
            if target is torch.ops.higher_order.flat_apply and "ModIndex" in str(given[2]):
                return given[3][tuple([index.long() for index in given[4:]])]
            return super().call_function(target, given, words)

    return Indexing(function).run(*args)


def _over_pairs(made: Any) -> Any:
    """A mask or bias with four dims, each of full size or 1."""
    return made.reshape((1,) * (4 - made.dim()) + tuple(made.shape))


def _spelled(
    q: Any, k: Any, v: Any, score: Any, place: Any, mask: Any, window: Any, scale: float, held: Any
) -> tuple[Any, Any, Any]:
    """Any score function, in ATen ops: the scores are inputs of attention as its bias."""
    import torch

    wide = torch.float64 if q.dtype == torch.float64 else torch.float32
    shared = q.shape[-3] // k.shape[-3]
    keys = k.to(wide).repeat_interleave(shared, -3) if shared > 1 else k.to(wide)
    scores = _called(score, (q.to(wide) @ keys.transpose(-1, -2)) * scale, *place, *held)
    left, right, bottom_right = window
    nothing = torch.zeros_like(q)  # whose scores are 0
    out, lse = plain_attention(
        nothing, k, v, mask, scores, None, 1.0, left, right, bottom_right, 0.0
    )
    return out, lse / math.log(2), scores.amax(-1)


def drop_block_tables(module: Any) -> None:
    """Remove the tables of blocks, which only PyTorch's own kernels read, and what makes them."""
    graph = module.graph
    dead: set[Any] = set()
    for node in graph.nodes:
        if "flex_attention" in str(node.target) and node.op == "call_function":
            tables = node.args[4]
            kept = [None if hasattr(each, "users") else each for each in tables[:-1]]
            dead |= {each for each in tables[:-1] if hasattr(each, "users")}
            node.update_arg(4, (*kept, tables[-1]))
    if not dead:
        return
    for node in [*graph.nodes]:
        if "_assert_tensor_metadata" in str(node.target):  # which hold by the traced types
            graph.erase_node(node)
    for node in reversed([*graph.nodes]):
        if node in dead and node.op == "call_function" and not node.users:
            dead |= {*node.all_input_nodes}
            graph.erase_node(node)
    if not any("_add_batch_dim" in str(node.target) for node in graph.nodes):
        for node in reversed([*graph.nodes]):  # which open and close the levels of vmap
            if "predispatch" in str(node.target) or "_vmap_" in str(node.target):
                graph.erase_node(node)
    module.recompile()
