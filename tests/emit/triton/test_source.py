"""Triton functions from texts, which threads make and compile at the same time."""

from __future__ import annotations

import gc
import inspect
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

pytest.importorskip("triton")


def test_functions_of_one_name_have_their_own_sources():
    from weft.emit.triton.source import function_of

    texts = [f"@triton.jit\ndef same(a):\n    a + {n}\n" for n in range(2)]
    functions = [function_of("same", text) for text in texts]
    for function, text in zip(functions, texts, strict=True):
        assert inspect.getsource(function.fn) == text


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
        with ThreadPoolExecutor(4) as pool:
            made = [*pool.map(lambda f: len(f.parse().body[0].body), functions * 4)]
    finally:
        gc.callbacks.remove(yields)
    assert made == [300] * 16
