"""A program's own handlers of signals: they run, and may raise, but never inside of Weft."""

from __future__ import annotations

import pytest

from tests.jax.door import run_on_weft

SCRIPT = """
import os, random, signal, threading, time
import numpy as np
import jax, jax.numpy as jnp

class Mine(Exception):
    pass
def raises(number, frame):
    raise Mine
def computes(number, frame):
    global ran
    assert np.array_equal(f(x), wanted)
    ran += 1

rng, ran = random.Random(times), 0
f = jax.jit(lambda v: v * 2 + 1)
product = jax.jit(lambda v: (v @ v).sum())
back = jax.jit(lambda v: jax.pure_callback(lambda w: np.asarray(w) + 1, v, v))
x, m, host = jnp.arange(8.0), jnp.ones((300, 300)), np.arange(64, dtype=np.float32)
wanted = [1, 3, 5, 7, 9, 11, 13, 15]
split = jax.NamedSharding(jax.make_mesh((8,), ("d",)), jax.P("d"))
def calls():
    for _ in range(20): y = f(x)
    return np.asarray(y)
acts = [calls, lambda: np.asarray(jax.device_put(host, split)),
        lambda: product(m).block_until_ready(), lambda: np.asarray(back(x))]
lasts = {}
for _ in range(2):
    for act in acts:
        begin = time.perf_counter()
        act()
        lasts[act] = time.perf_counter() - begin

raised = 0
signal.signal(signal.SIGALRM, lambda *given: (computes if n % 3 == 2 else raises)(*given))
calls()
for n in range(times):
    act = rng.choice(acts)
    delay = max(1e-6, 1.2 * rng.random() * lasts[act])
    try:
        signal.setitimer(signal.ITIMER_REAL, delay)
        act()
        time.sleep(2 * delay)
    except Mine:
        raised += 1
    except (ValueError, jax.errors.JaxRuntimeError) as error:
        assert "Mine" in str(error), error  # it came to the function that is called back
    assert np.array_equal(f(x), wanted)
assert raised > 0.4 * times and ran > 0.2 * times, (raised, ran)

signal.signal(signal.SIGALRM, signal.SIG_IGN)
def lasting(v):
    started.set()
    while True: time.sleep(0.01)
def press():
    started.wait()
    for _ in range(2):
        time.sleep(0.1)
        os.kill(os.getpid(), signal.SIGINT)
started = threading.Event()
endless = jax.jit(lambda v: jax.pure_callback(lasting, v, v))
threading.Thread(target=press).start()
try:
    endless(x).block_until_ready()
    for _ in range(9): time.sleep(0.01)
except KeyboardInterrupt:
    pass
else:
    raise AssertionError("no interrupt")
assert np.array_equal(f(x), wanted)
print("fine")
"""

LOOPS = """
import os, signal, threading, time
import numpy as np
import jax, jax.numpy as jnp

class Mine(Exception):
    pass
def raises(number, frame):
    raise Mine
def press(after):
    time.sleep(after)
    os.kill(os.getpid(), signal.SIGINT)
def ends(kind, after, *given):
    if kind is KeyboardInterrupt:
        threading.Thread(target=press, args=(after,)).start()
    signal.setitimer(signal.ITIMER_REAL, after if kind is Mine else 0)
    begin = time.monotonic()
    try:
        loop(*given)
    except kind as raised:
        assert raised.__context__ is None  # no error of JAX before
    else:
        raise AssertionError("no interrupt")
    assert time.monotonic() - begin < 20
def turn(c):
    return c[0] + 1, jnp.roll(c[1], 1) * 0.5 + 1, jnp.flip(c[2]) - c[1]
def rounds(most, v):
    return jax.lax.while_loop(lambda c: c[0] < most, turn, (0, v, v))[1:]

signal.signal(signal.SIGALRM, raises)
x, most = jnp.arange(1000.0), jnp.int32(2**31 - 1)
few = [np.asarray(made) for made in jax.jit(rounds)(jnp.int32(7), x)]
for donated in (), (1,):
    for warm in 0, 4:  # in Python, and in native code
        for kind in KeyboardInterrupt, Mine:
            loop = jax.jit(lambda *given: rounds(*given), donate_argnums=donated)
            for _ in range(warm):
                loop(jnp.int32(7), x + 0)
            for after in 0.15, 1, 5:  # while it is compiled, nothing is deleted
                given = x + 0
                ends(kind, after, most, given)
                if given.is_deleted() == bool(donated):
                    break
            else:
                raise AssertionError("a donated argument is there")
            assert donated or np.array_equal(given, x)
            for made, want in zip(loop(jnp.int32(7), x + 0), few):
                assert np.array_equal(made, want)

split = jax.NamedSharding(jax.make_mesh((8,), ("d",)), jax.P("d"))
loop = jax.jit(jax.shard_map(
    lambda v: jax.lax.while_loop(lambda c: c[0] >= 0, lambda c: c * c, v),
    mesh=split.mesh, in_specs=jax.P("d"), out_specs=jax.P("d"),
))
ends(Mine, 0.15, jax.device_put(jnp.ones(16), split))
print("fine")
"""


def test_signals_end_loops() -> None:
    """Ctrl-C ends a loop that runs without Python; what was donated is deleted."""
    assert run_on_weft(LOOPS, timeout=120) == "fine\n"


def test_signals() -> None:
    assert run_on_weft("times = 60\n" + SCRIPT) == "fine\n"


@pytest.mark.long
@pytest.mark.parametrize("turn", range(3))
def test_signals_hundreds_of_times(turn: int) -> None:
    assert run_on_weft(f"times = {400 + turn}\n" + SCRIPT, timeout=1200) == "fine\n"
