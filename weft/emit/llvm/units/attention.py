"""The work of attention: heads, tiles of scores, and rows of few queries."""

from __future__ import annotations

import math
from collections.abc import Mapping

from weft.emit.llvm.attention.few_queries import are_few, folded
from weft.emit.llvm.attention.tiling import tiling
from weft.emit.llvm.jit.processor import Processor
from weft.kernels.attention import Attention

_PRODUCTS = (3, 2)  # of the backward pass, over the depth and over that of values
# A score of the backward pass, relative to one forward: its exponential again, the gradient of its
# probability, and both of them once more in the order of the keys.
_GRADIENT = 3.5


def attention_units(kernel: Attention, processor: Processor) -> Mapping[str, float]:
    """Heads, flops of whole tiles, and what each score takes beside them."""
    kernel = folded(kernel)
    tiles, heads = tiling(kernel, processor), math.prod(kernel.outer)
    depth, values = tiles.padded(kernel.depth), tiles.padded(kernel.value_depth)
    if are_few(kernel):
        # Scores of as many keys as there are lanes are added up across them.
        keys = -(-kernel.keys // tiles.lanes)
        few, products = kernel.queries * keys, 2.0 * kernel.queries * keys * tiles.lanes
        both = products * (depth + values)
        return {"head": heads, "few": heads * few, "attention": heads * both}
    scores = _scores(kernel, tiles.queries, tiles.lanes)
    back, forth = _PRODUCTS if kernel.gradients is not None else (1, 1)
    each = 1.0 if kernel.gradients is None else _GRADIENT
    flops = 2 * scores * (back * depth + forth * values)
    return {"head": heads, "scores": heads * scores * each, "attention": heads * flops}


def _scores(kernel: Attention, tile: int, lanes: int) -> float:
    """Scores of one head: queries fill lanes, and keys are skipped by whole tiles of queries."""
    total = 0.0
    for first in range(0, kernel.queries, tile):
        ends = (first, min(first + tile, kernel.queries) - 1)
        seen = [kernel.window.visible_keys(i, kernel.keys) for i in ends]
        begin, end = min(r.start for r in seen), max(r.stop for r in seen)
        queries = -(-min(tile, kernel.queries - first) // lanes) * lanes
        total += queries * max(0, end - begin)
    return total
