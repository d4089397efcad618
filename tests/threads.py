"""Work on several threads at once."""

from __future__ import annotations

import threading
from collections.abc import Callable


def in_threads(work: Callable[[int], object], count: int) -> None:
    """Run `work(0)` to `work(count - 1)` at once, each on a thread of its own."""
    threads = [threading.Thread(target=work, args=(n,)) for n in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
