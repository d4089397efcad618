"""Memory of arrays that native code makes; large blocks are kept for the next array of their size.

The pages of a new block are faulted in one by one, which takes longer than most kernels that write
to it. Python's lock is held in all functions here.
"""

from __future__ import annotations

from weft.jax.native.state import KEPT, state
from weft.native.function import native
from weft.native.libc import aligned_alloc, free
from weft.native.memory import Pointer

# Bytes: malloc caches smaller blocks itself, and larger ones rarely have equal sizes.
_LEAST, _MOST = 1 << 16, 1 << 22
_VECTOR = 64  # bytes that memory is aligned to


@native
def block(nbytes: int) -> Pointer:
    """Memory that vectors can be loaded from, null if there is none."""
    if nbytes >= _LEAST and nbytes <= _MOST:
        for n in range(KEPT):
            kept = state.kept.nth(n)
            if kept.nbytes == nbytes:
                kept.nbytes = 0
                return kept.memory
    # C11 wants a multiple of the alignment; one vector more, so that 0 bytes have an address, too.
    return aligned_alloc(_VECTOR, (nbytes + (2 * _VECTOR - 1)) & -_VECTOR)


@native
def release(memory: Pointer, nbytes: int) -> None:
    """Cache a block, evicting round robin, or free it; `nbytes` is 0 where it is not known."""
    if memory and nbytes >= _LEAST and nbytes <= _MOST:
        slot = state.kept.nth(state.turn)
        if slot.nbytes != 0:
            free(slot.memory)
        slot.memory = memory
        slot.nbytes = nbytes
        state.turn = (state.turn + 1) % KEPT
    else:
        free(memory)
