"""The GPU that a worker begins with: that of its local rank, by any launcher."""

from __future__ import annotations

import sys
from contextlib import suppress
from functools import cache
from typing import Any

from weft.errors import WeftError
from weft.workers.member import member


def choose_gpu() -> None:
    """Have this process begin with the GPU of its local rank, if it is a worker once it uses one.

    Without effect before PyTorch is imported, and once the script has used a GPU itself.
    """
    cuda: Any = sys.modules.get("torch.cuda")
    # PyTorch may be half imported: a package that it loads may import Weft.
    if hasattr(cuda, "_lazy_call") and not cuda.is_initialized():
        _queue(cuda)


@cache
def _queue(cuda: Any) -> None:
    """Choose when CUDA is initialized: a worker that uses no GPU must not wait for it."""

    def choose() -> None:
        # The variables are read now: a process of multiprocessing sets them after its imports.
        with suppress(WeftError):  # the first use of a mesh reports it
            me, count = member(), cuda.device_count()
            if me is not None and count and cuda.current_device() == 0:
                cuda.set_device(me.local_rank % count)

    cuda._lazy_call(choose)
