"""Colocated Python: ordered in a thread, concurrent across threads, specialized by result specs."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import weft
from weft import Mesh, P
from weft.colocated import colocated
from weft.errors import WeftError

MESH = Mesh(x=2)
ONE = np.arange(8, dtype=np.float32)


def given(values=ONE, mesh=MESH):
    return weft.put(values, P("x"), mesh)


def test_results_are_promised_after_the_first_call():
    gate, calls = threading.Event(), []

    @colocated
    def twice(x, scale):
        calls.append(len(x.addressable_shards))
        if len(calls) > 1:
            gate.wait(30)
        return {"y": weft.put(2 * np.asarray(x), P("x"), x.mesh), "n": (np.float32(3), scale)}

    first = twice(given(), scale=given())
    assert first["y"].is_ready and first["y"].sharding == given().sharding
    np.testing.assert_array_equal(first["n"][0], 3)
    second = twice(given(ONE + 1), scale=given())
    assert not second["y"].is_ready and second["y"].spec is first["y"].spec
    gate.set()
    np.testing.assert_array_equal(second["y"], 2 * (ONE + 1))
    np.testing.assert_array_equal(second["n"][1], ONE)
    assert calls == [2, 2]
    assert twice.__name__ == "twice"


def test_programs_and_functions_wait_for_each_other():
    double = weft.compile(lambda x: x * 2, given(), mesh=MESH)
    host = colocated(lambda x: weft.put(np.asarray(x) + 1, P("x"), MESH))
    x = given()
    for _ in range(3):
        x = host(double(x))
    np.testing.assert_array_equal(x, 8 * ONE + 7)


def test_calls_of_a_thread_are_in_order():
    seen = []

    @colocated
    def note(x):
        seen.append(int(np.asarray(x)[0]))
        return x

    last = [note(given(np.full(8, n, np.float32))) for n in range(20)]
    last[-1].wait()
    assert seen == [*range(20)]


def test_threads_run_concurrently():
    both = threading.Barrier(2, timeout=30)

    @colocated
    def meet(x):
        both.wait()  # until two calls are in it at once
        return x

    threads = [threading.Thread(target=lambda: meet(given()).wait()) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not both.broken


def test_one_function_calls_another():
    inner = colocated(lambda x: weft.put(np.asarray(x) + 1, P("x"), MESH))
    outer = colocated(lambda x: inner(inner(x)))
    for _ in range(2):
        np.testing.assert_array_equal(outer(given()), ONE + 2)


def test_an_error_is_raised_where_a_result_is_read():
    @colocated
    def fails(x):
        if np.asarray(x)[0] < 0:
            raise ValueError("negative")
        return x

    fails(given())
    later = fails(given(ONE - 1))
    after = fails(later)
    for result in (later, after):
        with pytest.raises(ValueError, match="negative") as raised:
            np.asarray(result)
        assert any("test_colocated.py" in note for note in raised.value.__notes__)
    with pytest.raises(ValueError, match="negative"):  # the first call waits
        colocated(fails.fn)(given(ONE - 1))
    np.testing.assert_array_equal(fails(given()), ONE)


def test_specs_are_fixed_once_and_kept():
    x = given()
    swap = colocated(lambda a, b: (b, a))
    fixed = swap.specialize(out_specs_fn=lambda a, b: (b, a))
    started = fixed(x, weft.put(np.int32(1), P(), MESH))
    assert started[0].dtype == np.int32
    np.testing.assert_array_equal(started[1], ONE)
    with pytest.raises(WeftError, match="out_specs_fn is fixed already"):
        fixed.specialize(out_specs_fn=lambda a, b: (a, b))
    typed = swap.specialize(in_specs=(x.spec, x.spec))
    typed(x, x)
    with pytest.raises(
        WeftError, match=r'argument\[1\]: expected f32\[8\] P\("x"\), got i32\[\] P\(\)'
    ):
        typed(x, weft.put(np.int32(1), P(), MESH))
    wrong = swap.specialize(out_specs_fn=lambda a, b: (a, b))(x, weft.put(np.int32(1), P(), MESH))
    message = (
        r'result\[0\]: expected f32\[8\] P\("x"\), got i32\[\] P\(\); '
        r'result\[1\]: expected i32\[\] P\(\), got f32\[8\] P\("x"\)'
    )
    with pytest.raises(WeftError, match=message):
        np.asarray(wrong[0])
    with pytest.raises(WeftError, match="it must return specs"):
        swap.specialize(out_specs_fn=lambda a, b: 3)(x, x)
    states = [np.zeros(8, np.float32), np.zeros(4, np.float32)]
    changing = colocated(lambda x: weft.put(states.pop(), P("x"), MESH))
    changing(x)
    with pytest.raises(WeftError, match=r'result: expected f32\[4\] P\("x"\), got f32\[8\]'):
        changing(x).wait()


def test_an_error_shows_the_shardings_and_the_structure():
    x = given()
    other = lambda x: {"y": weft.put(ONE, P(), MESH)}  # noqa: E731
    for promised, message in (
        (lambda x: {"y": x}, """result['y']: expected f32[8] P("x"), got f32[8] P(None)"""),
        (lambda x: (x,), """expected (f32[8] P("x"),), got {'y': f32[8] P(None)}"""),
    ):
        made = colocated(other).specialize(out_specs_fn=promised)(x)
        with pytest.raises(WeftError) as raised:
            (made["y"] if isinstance(made, dict) else made[0]).wait()
        assert raised.value.message.endswith(": " + message)
    typed = colocated(lambda a: a).specialize(in_specs=(x.spec,))
    with pytest.raises(WeftError, match=r"got f32\[8\] P\(.*\) on devices \[0, 1, 2, 3\]"):
        typed(given(mesh=Mesh(x=4)))


def test_devices():
    nothing = colocated(lambda: np.float32(2))
    with pytest.raises(WeftError, match="its devices are unknown"):
        nothing()
    fixed = nothing.specialize(mesh=MESH)
    for _ in range(2):
        assert fixed().mesh == MESH
    pair = colocated(lambda a, b: a)
    with pytest.raises(WeftError, match="on different devices"):
        pair(given(), given(mesh=Mesh(x=4)))
    with pytest.raises(WeftError, match="on different devices"):
        fixed_pair = pair.specialize(mesh=Mesh(x=4))
        fixed_pair(given(), given())
    with pytest.raises(WeftError, match="its arguments are on"):
        colocated(lambda x: given(mesh=Mesh(x=4)))(given())
    with pytest.raises(WeftError, match="called with float, and takes arrays"):
        pair(given(), 1.0)


def test_objects_are_made_at_the_first_call():
    made = []

    @colocated
    class Counter:
        def __init__(self, start, *, fails=False):
            made.append(start)
            if fails:
                raise ValueError("no data")
            self.count = start

        def add(self, x):
            self.count += 1
            return weft.put(np.asarray(x) + self.count, P("x"), MESH)

    counter = Counter(10)
    assert made == [] and Counter.__name__ == "Counter"
    for n in range(3):
        np.testing.assert_array_equal(counter.add(given()), ONE + 11 + n)
    assert made == [10]
    broken = Counter(0, fails=True)
    for _ in range(2):
        with pytest.raises(ValueError, match="no data"):
            broken.add(given())
    assert made == [10, 0]
    with pytest.raises(AttributeError, match="Counter has no method subtract"):
        _ = counter.subtract
