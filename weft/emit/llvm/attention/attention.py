"""Fused attention: tiles of queries against tiles of keys, without materialized scores.

A task is some tiles of queries at one point of the outer dims. Keys and values are streamed in
cache-sized tiles; fully masked tiles are skipped.
"""

from __future__ import annotations

from weft.emit.llvm.attention.backward import BackwardKernel
from weft.emit.llvm.attention.few_queries import FewQueriesKernel, are_few, folded
from weft.emit.llvm.attention.online import ForwardKernel
from weft.emit.llvm.attention.tiles import TiledForward, fits_tiles
from weft.emit.llvm.attention.tiling import tiling
from weft.emit.llvm.emitted import Emitted
from weft.emit.llvm.jit.processor import Processor, host
from weft.kernels.attention import Attention


def emit_attention(kernel: Attention, processor: Processor | None = None) -> Emitted:
    """Emit an attention kernel."""
    kernel, processor = folded(kernel), processor or host()
    tiles = tiling(kernel, processor)
    if are_few(kernel):
        return FewQueriesKernel(kernel, tiles).emitted()
    if kernel.gradients is not None:
        return BackwardKernel(kernel, tiles).emitted()
    if fits_tiles(kernel, processor):
        return TiledForward(kernel, tiles).emitted()
    return ForwardKernel(kernel, tiles).emitted()
