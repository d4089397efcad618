"""Kernels compiled by threads: the switch interval, and syntax trees that are built together."""

from __future__ import annotations

import gc
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from weft.emit.triton.runtime.switching import INTERVAL, brisk_threads

pytest.importorskip("triton")


def test_the_interval_is_restored_by_the_last_thread():
    before = sys.getswitchinterval()
    with brisk_threads():
        with brisk_threads():
            assert sys.getswitchinterval() == pytest.approx(INTERVAL)
        assert sys.getswitchinterval() == pytest.approx(INTERVAL)
    assert sys.getswitchinterval() == pytest.approx(before)


def test_threads_parse_functions_together():
    """Collections of garbage, which may run Python, let another thread begin a tree."""
    from weft.emit.triton.source import function_of

    lines = "".join([f"    a = a * (a + {n}) - (a // {n + 1})\n" for n in range(300)])
    functions = [
        function_of(f"long{n}", f"@triton.jit\ndef long{n}(a):\n{lines}") for n in range(4)
    ]

    def yields(*_: object) -> None:
        time.sleep(0)

    gc.callbacks.append(yields)
    try:
        with brisk_threads(), ThreadPoolExecutor(4) as pool:
            made = [*pool.map(lambda f: len(f.parse().body[0].body), functions * 4)]
    finally:
        gc.callbacks.remove(yields)
    assert made == [300] * 16
