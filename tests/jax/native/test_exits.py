"""A process ends as it wants to, whatever is under way; a forked one is told so and ends, too."""

from __future__ import annotations

import pytest

from tests.jax.door import run_on_weft, start

# Each case runs in children that are forked before anything is used, so they are as new.
ENDINGS = """
import os, signal, sys, time
import numpy as np
import jax, jax.numpy as jnp
import weft.jax.plugin
import weft

BEGIN = '''
import atexit, gc, os, sys, threading, time
import numpy as np
import jax, jax.numpy as jnp
product = jax.jit(lambda x: (x @ x @ x).sum())
m = jnp.ones((200, 200))
def wait(x):
    time.sleep(0.02)
    return x
slow = jax.jit(lambda x: jax.pure_callback(wait, x, x))
'''
CASES = {
    "at once": ("", 0),
    "under way": ("for _ in range(20): y = product(m)", 0),
    "in a callback": ("y = slow(jnp.ones(3)); z = slow(y)", 0),
    "exit in a callback": (
        "def leave(x): sys.exit(7)\\n"
        "x = jnp.ones(3)\\n"
        "try: jax.jit(lambda x: jax.pure_callback(leave, x, x))(x).block_until_ready()\\n"
        "except jax.errors.JaxRuntimeError as error: assert 'SystemExit' in str(error)\\n"
        "sys.exit(7)", 7),
    "raised": ("y = product(m); raise ValueError('mine')", 1),
    "os._exit": ("y = product(m); z = slow(jnp.ones(3)); os._exit(5)", 5),
    "daemons": (
        "def work():\\n"
        "    while True:\\n"
        "        np.asarray(jax.device_put(np.ones(8, np.float32)) + 1)\\n"
        "for _ in range(3): threading.Thread(target=work, daemon=True).start()\\n"
        "time.sleep(0.02)", 0),
    "threads": (
        "def work():\\n"
        "    for _ in range(30): np.asarray(jax.device_put(np.ones(8, np.float32)) + 1)\\n"
        "for _ in range(3): threading.Thread(target=work).start()", 0),
    "at exit": (
        "def last(): assert float(product(m)) > 0; print('last', file=sys.stderr)\\n"
        "y = product(m)\\natexit.register(last)", 0),
    "kept for ever": ("import builtins; builtins.kept = [product(m), slow(jnp.ones(3))]", 0),
    "garbage": (
        "class Last:\\n"
        "    def __init__(self): self.y, self.me = product(m), self\\n"
        "    def __del__(self): self.y.delete()\\n"
        "last = Last(); gc.disable()", 0),
    "terminated": ("y = slow(jnp.ones(3)); os.kill(os.getpid(), 15); time.sleep(5)", -15),
}

def ending(source):
    child = os.fork()
    if not child:
        signal.alarm(60)
        sys.stderr = open(os.devnull, "w")
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        exec(BEGIN + source, {"__name__": "__main__"})
        sys.exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

wrong = []
for turn in range(times):
    for name, (source, wanted) in CASES.items():
        got = ending(source)
        if got != wanted:
            wrong.append((name, got))
assert not wrong, wrong
print("fine", times * len(CASES))
"""


def test_endings() -> None:
    assert run_on_weft("times = 1\n" + ENDINGS).startswith("fine")


@pytest.mark.long
def test_endings_hundreds_of_times() -> None:
    assert run_on_weft("times = 40\n" + ENDINGS, timeout=3000).startswith("fine")


def test_ending_of_a_whole_process() -> None:
    source = """
import jax, jax.numpy as jnp, sys, threading, time
f = jax.jit(lambda x: jax.pure_callback(lambda v: v, x, x) + 1)
def work():
    while True:
        f(jnp.ones(3)).block_until_ready()
threading.Thread(target=work, daemon=True).start()
time.sleep(0.2)
y = f(jnp.ones(3))
raise ValueError("mine")
"""
    done = start(source, "weft", devices=8, timeout=100)
    assert done.returncode == 1 and "ValueError: mine" in done.stderr, done.stderr
    assert "Fatal" not in done.stderr


FORKED = """
import os, multiprocessing as mp, sys, warnings
warnings.simplefilter("ignore")
import numpy as np
import jax, jax.numpy as jnp
f = jax.jit(lambda x: x + 1)
x = jnp.ones(3)
y = f(x)
def child():
    try:
        f(x)
    except Exception as error:
        return int("forked" not in str(error))
    return 2
codes = []
for _ in range(times):
    number = os.fork()
    if not number:
        code = child()
        sys.exit(code)
    codes.append(os.waitstatus_to_exitcode(os.waitpid(number, 0)[1]))
assert not any(codes), codes
worker = mp.get_context("fork").Process(target=child)
worker.start()
worker.join(60)
assert worker.exitcode == 0, worker.exitcode
assert np.array_equal(f(x), [2, 2, 2])
with mp.get_context("spawn").Pool(1) as pool:
    assert pool.apply(os.getpid) != os.getpid()
print("fine")
"""


def test_forked() -> None:
    assert run_on_weft("times = 5\n" + FORKED) == "fine\n"


@pytest.mark.long
def test_forked_hundreds_of_times() -> None:
    assert run_on_weft("times = 300\n" + FORKED, timeout=1000) == "fine\n"
