"""Calls on a stack of their own, however deep the caller is."""

from __future__ import annotations

import sys
import threading

import pytest

from tests.jax.door import run_on_weft
from weft.jax.programs.own_stack import on_own_stack


def depth() -> int:
    frame, count = sys._getframe(), 0
    while frame is not None:
        frame, count = frame.f_back, count + 1
    return count


def deeply(frames: int) -> int:
    return on_own_stack(depth) if frames == 0 else deeply(frames - 1)


def test_a_deep_caller_leaves_all_of_the_stack() -> None:
    assert max(deeply(10), deeply(300)) < 15 < depth()


def test_a_new_stack_is_used_as_it_is() -> None:
    found: list[int] = []
    names: list[str] = []

    def run() -> None:
        on_own_stack(lambda: names.append(threading.current_thread().name))
        found.append(on_own_stack(depth))

    thread = threading.Thread(target=run, name="the caller's")
    thread.start()
    thread.join()
    assert names == ["the caller's"] and found[0] < 15


def test_what_is_raised_is_raised_here() -> None:
    with pytest.raises(KeyboardInterrupt):
        on_own_stack(_raise)


def _raise() -> None:
    raise KeyboardInterrupt


def test_where_no_thread_can_be_started_the_stack_is_the_caller_s(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert deeply(20) > 20


def test_constants_below_the_normal_numbers_are_kept() -> None:
    """jaxlib 0.10 compiles in a thread that would flush them to zero."""
    source = """
import jax, numpy as np
x = np.ones(2, np.float32)
for tiny in (np.float32(1e-40), np.float32(3e-45), np.float16(6e-8)):
    made = jax.jit(lambda x: x.astype(tiny.dtype) * tiny)(x)
    assert (np.asarray(made) == tiny).all(), (tiny, made)
print("kept")
"""
    assert run_on_weft(source) == "kept\n"
