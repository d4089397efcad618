"""Hooks for the end of a process and for a forked child, which has no threads but its own."""

from __future__ import annotations

import atexit
import os
import weakref
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def after_fork(
    in_child: Callable[[], object],
    *,
    before: Callable[[], object] | None = None,
    in_parent: Callable[[], object] | None = None,
) -> None:
    """Call a function in every child that is forked from now on; systems without fork have none."""
    if hasattr(os, "register_at_fork"):
        hooks = {"before": before, "after_in_parent": in_parent, "after_in_child": in_child}
        os.register_at_fork(**{name: hook for name, hook in hooks.items() if hook})


def fork_tracked(
    at_exit: Callable[[T], object], in_child: Callable[[T], object]
) -> weakref.WeakSet[T]:
    """A set of weakly held objects, with hooks that run at exit and in a forked child."""
    alive: weakref.WeakSet[T] = weakref.WeakSet()

    def call_all(hook: Callable[[T], object]) -> None:
        for one in list(alive):  # a copy: garbage collection may shrink the set meanwhile
            hook(one)

    atexit.register(call_all, at_exit)
    after_fork(lambda: call_all(in_child))
    return alive
