"""Arrays know the call that made them, and errors show it."""

from __future__ import annotations

import queue
import threading
import traceback

import jax
import numpy as np
import pytest

import weft
from weft import WeftError
from weft.array.context import CONTEXTS, ContextRegistry, UserContext, note, users_line


def test_a_call_site_is_captured_once():
    def call() -> UserContext:
        return CONTEXTS.here()

    def outer() -> UserContext:
        return call()

    first, again = [outer() for _ in range(2)]
    assert first is again
    assert [name for _, _, name in first.frames[:2]] == ["call", "outer"]
    assert first.place.endswith("return CONTEXTS.here()")
    assert CONTEXTS.find(first.id) is first
    other = CONTEXTS.here()
    assert other is not first and other.id != first.id


def test_none_is_refused():
    with pytest.raises(TypeError, match="None is no id"):
        CONTEXTS.find(None)
    assert CONTEXTS.find(1 << 60) is None


def test_the_line_of_a_thread_that_waits_in_the_standard_library():
    rows: queue.Queue[int] = queue.Queue()
    thread = threading.Thread(target=lambda: rows.get(), daemon=True)
    thread.start()
    while "rows.get()" not in users_line(thread):
        assert thread.is_alive() and not users_line(thread).startswith(queue.__file__)
    rows.put(1)
    thread.join()
    assert users_line(thread) == ""


def test_threads_share_the_registry():
    registry = ContextRegistry(most=50)
    source = "def f(registry):\n" + "".join(
        f"    yield registry.here()  # {n}\n" for n in range(40)
    )
    space: dict[str, object] = {"__name__": "user"}
    exec(compile(source, "user.py", "exec"), space)
    found: list[list[UserContext]] = []
    start = threading.Barrier(8)

    def work() -> None:
        start.wait()
        found.append([*space["f"](registry)])

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    for contexts in zip(*found, strict=True):
        assert len({*map(id, contexts)}) == 1
    assert len({context.id for context in found[0]}) == 40 == len(registry)


def test_many_call_sites_are_forgotten_not_mixed_up():
    registry = ContextRegistry(most=2)
    first = registry.here()
    made = [registry.here(), registry.here(), registry.here()]
    assert len({context.id for context in [first, *made]}) == 4
    assert len(registry) <= 2 and first.place.endswith("first = registry.here()")


def test_notes_are_in_order_and_few():
    error = WeftError("no", help="yes")
    for n in range(9):
        for _ in range(2):
            note(error, UserContext(n + 1, ((f"f{n}.py", n, "main"), ("g.py", 3, "run"))))
    assert error.__notes__[0] == "computed by f0.py:0\n  called by g.py:3 in run"
    assert len(error.__notes__) == 4
    note(error, None)


def test_an_asynchronous_error_names_the_call_that_computes_it():
    def fail(value):
        raise ValueError("no")

    program = weft.compile(lambda x: jax.pure_callback(fail, x, x) + 1, np.ones(3, "f"))
    made = program(np.ones(3, "f"))  # the line that is named
    with pytest.raises(Exception) as caught:
        np.asarray(program(made))
    shown = "".join(traceback.format_exception(caught.value))
    assert "computed by" in shown and "the line that is named" in shown
