"""Arguments in other sub-axes than the program's: converted once, never stale."""

from __future__ import annotations

import threading
from weakref import ref

import jax
import numpy as np
import pytest

import weft
from weft import Mesh, P

MESH = Mesh(data=2, model=4)
EVERY = P(("data", "model"))
SHAPES = {"even": (16, 6), "odd": (11, 5), "one": (1, 3), "empty": (0, 4)}


def numbers(shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def direct(x, y):
    """x + 1; the other argument's reshape splits an axis, and so the sub-axes of all arguments."""
    return x + 1, y.reshape(2, 4, 8) * 2


def in_steps(x, y):
    """The same, with a function of the host between kernels."""
    two = jax.pure_callback(lambda n: np.float32(2), jax.ShapeDtypeStruct((), y.dtype), y.sum())
    return x + 1, y.reshape(2, 4, 8) * two


def compiled(shape, *, function=direct, donate=(), sharding=EVERY):
    return weft.compile(
        function,
        numbers(shape),
        numbers((8, 8)),
        mesh=MESH,
        in_shardings=(sharding, P("model")),
        out_shardings=(sharding, None),
        donate_argnums=donate,
    )


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("function", [direct, in_steps])
def test_an_argument_is_converted_once(name, function):
    host, y = numbers(SHAPES[name]), numbers((8, 8))
    program, x = compiled(SHAPES[name], function=function), weft.put(host, EVERY, MESH)
    assert np.array_equal(program(x, y)[0], host + 1)
    view = x.stacked.view
    if host.size:
        assert view is not None and view.sub_axes != x.stacked.sub_axes and not view.owned
    assert np.array_equal(program(x, y)[0], host + 1)
    assert x.stacked.view is view or not host.size
    assert np.array_equal(x, host)


def test_elements_out_of_order_are_copied_once():
    host, y, columns = numbers((6, 16)), numbers((8, 8)), P(None, ("data", "model"))
    program, x = compiled((6, 16), sharding=columns), weft.put(host, columns, MESH)
    for _ in range(2):
        assert np.array_equal(program(x, y)[0], host + 1)
    data = x.stacked.data
    assert np.array_equal(program(x, y)[0], host + 1)
    assert x.stacked.data is data and x.stacked.view is not None
    assert np.shares_memory(x.stacked.view.data, data)


def test_programs_of_different_sub_axes_share_an_array():
    host, y = numbers((16, 6)), numbers((8, 8))
    one = compiled((16, 6))
    other = weft.compile(lambda x: x * 2, host, mesh=MESH, in_shardings=(EVERY,))
    x = weft.put(host, EVERY, MESH)
    for _ in range(3):
        assert np.array_equal(one(x, y)[0], host + 1)
        assert np.array_equal(other(x), host * 2)
        assert np.array_equal(one(other(x), y)[0], host * 2 + 1)


@pytest.mark.parametrize("sharding", [EVERY, P("data"), P(None, "model"), P()])
@pytest.mark.parametrize("function", [direct, in_steps])
def test_donation_and_deletion_drop_the_view(sharding, function):
    host, y = numbers((16, 8)), numbers((8, 8))
    reading = compiled((16, 8), function=function, sharding=sharding)
    donating = compiled((16, 8), function=function, sharding=sharding, donate=0)
    x = weft.put(host.copy(), sharding, MESH)
    before, _ = reading(x, y)
    after, _ = donating(x, y)
    assert np.array_equal(before, host + 1) and np.array_equal(after, host + 1)
    with pytest.raises(weft.WeftError, match="donated"):
        reading(x, y)
    again, _ = donating(after, y)
    assert np.array_equal(again, host + 1 + 1) and np.array_equal(before, host + 1)
    reading(again, y)[0].wait()
    held = ref(again.stacked.data)
    again.delete()
    assert held() is None


def test_a_donated_array_leaves_the_results_that_alias_it():
    """A copy of elements out of order is the array's own, but results may share it."""
    host, columns = numbers((3, 4)), P(None, "x")
    kept = {"mesh": Mesh(x=2), "in_shardings": (columns,)}
    both = weft.compile(lambda x: (x, x + 1), host, out_shardings=(columns, columns), **kept)
    over = weft.compile(lambda x: x * 0 - 7, host, out_shardings=columns, donate_argnums=0, **kept)
    x = weft.put(host, columns, Mesh(x=2))
    same, more = both(x)
    assert np.array_equal(over(x), np.full_like(host, -7))
    assert np.array_equal(same, host) and np.array_equal(more, host + 1)


def test_threads_convert_one_array():
    columns = P(None, ("data", "model"))
    host, y = numbers((6, 16)), numbers((8, 8))
    one = compiled((6, 16), sharding=columns)
    other = weft.compile(lambda x: x * 2, host, mesh=MESH, in_shardings=(columns,))
    one(host, y), other(host)
    for _ in range(5):
        x, wrong = weft.put(host, columns, MESH), list[str]()

        def work(x=x, wrong=wrong):
            for _ in range(10):
                if not np.array_equal(one(x, y)[0], host + 1):
                    wrong.append("one")
                if not np.array_equal(other(x), host * 2):
                    wrong.append("other")

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not wrong
