"""Nothing that a program does ends its process: errors, interrupts, threads, exits and forks."""

from __future__ import annotations

import re

import pytest

from tests.jax.door import run_on_weft
from weft.jax.native.functions import native_slots

# Slots whose errors end the process: JAX asks for them where it cannot go on without an answer.
FATAL = """
Buffer_DecreaseExternalReferenceCount Buffer_Delete Buffer_Destroy Buffer_Device Buffer_Dimensions
Buffer_ElementType Buffer_IsDeleted Buffer_IsOnCpu Buffer_Memory Buffer_ReadyEvent
Client_AddressableDevices Client_AddressableMemories Client_Destroy Client_Devices
Client_PlatformName Client_PlatformVersion Client_ProcessIndex Client_UpdateGlobalProcessInfo
AsyncTrackingEvent_Destroy DeviceDescription_Attributes DeviceDescription_DebugString
DeviceDescription_Id DeviceDescription_Kind DeviceDescription_ProcessIndex
DeviceDescription_ToString Device_AddressableMemories Device_CreateAsyncTrackingEvent
Device_GetAttributes Device_GetDescription Device_IsAddressable Device_LocalHardwareId
Error_Destroy Error_ForEachPayload Error_GetCode Error_Message Event_Destroy Event_OnReady
ExecuteContext_Destroy Executable_Destroy Executable_Name Executable_NumPartitions
Executable_NumReplicas Executable_SizeOfGeneratedCodeInBytes
LoadedExecutable_AddressableDeviceLogicalIds LoadedExecutable_AddressableDevices
LoadedExecutable_Delete LoadedExecutable_Destroy LoadedExecutable_GetDeviceAssignment
LoadedExecutable_GetExecutable LoadedExecutable_IsDeleted Memory_AddressableByDevices
Memory_DebugString Memory_Id Memory_Kind Memory_Kind_Id Memory_ToString Plugin_Attributes
TopologyDescription_Attributes TopologyDescription_Destroy
TopologyDescription_GetDeviceDescriptions TopologyDescription_PlatformName
TopologyDescription_PlatformVersion
"""


def test_fatal_slots_are_native() -> None:
    assert {*FATAL.split()} <= {*native_slots()}


START = """
import gc, os, random, signal, sys, threading, time
import numpy as np
import jax, jax.numpy as jnp
times = {times}
"""

FREED = """
f = jax.jit(lambda a, b: a @ b)
g = jax.jit(lambda x: jax.pure_callback(fail, x, x))
def fail(x):
    raise ValueError("no")
class Late:
    def __del__(self):
        jnp.ones(3) + 1
for n in range(times):
    try:
        f(jnp.ones((3, 4)), jnp.ones((5, 6)))
    except TypeError:
        pass
    try:
        int("x", jnp.ones(3))
    except TypeError:
        pass
    try:
        g(jnp.ones(3) * n).block_until_ready()
    except jax.errors.JaxRuntimeError as error:
        assert "ValueError: no" in str(error)
    else:
        raise AssertionError("no error")
    try:
        late, value = Late(), jnp.ones(n % 7)
        raise KeyError(value, late)
    except KeyError:
        del late, value
print("fine", float((jnp.ones(3) * 2).sum()))
"""

INTERRUPTED = """
rng = random.Random(times)
f = jax.jit(lambda x: x * 2 + 1)
product = jax.jit(lambda x: (x @ x).sum())
back = jax.jit(lambda x: jax.pure_callback(lambda v: np.asarray(v) + 1, x, x))
give = jax.jit(lambda x: x + 1, donate_argnums=0)
x, m = jnp.arange(8.0), jnp.ones((300, 300))
split = jax.NamedSharding(jax.make_mesh((8,), ("d",)), jax.P("d"))
compiled = []
def compile():
    compiled.append(0)
    k = len(compiled)
    jax.jit(lambda v: v * k + k)(x)
def calls():
    for _ in range(20):
        y = f(x)
    np.asarray(y)
def donations():
    y = jnp.ones(8)
    for _ in range(20):
        y = give(y)
acts = {{
    compile: 0.0, calls: 0.0, donations: 0.0,
    lambda: np.asarray(jax.device_put(np.arange(64.0, dtype=np.float32), split)): 0.0,
    lambda: np.asarray(jax.device_put(np.arange(64.0, dtype=np.float32))): 0.0,
    lambda: product(m).block_until_ready(): 0.0,
    lambda: np.asarray(back(x)): 0.0,
}}
for _ in range(2):
    for act in acts:
        begin = time.perf_counter()
        act()
        acts[act] = time.perf_counter() - begin
count = 0
def alarm(*_):
    signal.raise_signal(signal.SIGINT)
signal.signal(signal.SIGALRM, alarm)
for _ in range(times):
    act = rng.choice([*acts])
    delay = max(1e-6, 1.2 * rng.random() * acts[act])
    try:
        signal.setitimer(signal.ITIMER_REAL, delay)
        act()
        time.sleep(2 * delay)
    except KeyboardInterrupt:
        count += 1
    assert np.asarray(f(x)).tolist() == [1, 3, 5, 7, 9, 11, 13, 15]
for act in acts:
    act()
assert count > 0.9 * times, count  # Python itself loses those that come while it frees something
print("fine", count)
"""

# JAX goes on compiling what was interrupted, in a thread of its own.
COMPILING = """
x, made, last, count = jnp.arange(8.0), 0, 0.0, 0
def compile():
    global made
    made += 1
    k = made
    return jax.jit(lambda v: jnp.sin(v * k) + jnp.cos(v) * k)(x)
for _ in range(3):
    begin = time.perf_counter()
    compile()
    last = time.perf_counter() - begin
signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))
rng = random.Random(times)
for _ in range(times):
    try:
        signal.setitimer(signal.ITIMER_REAL, max(1e-6, rng.random() * last))
        compile()
        signal.setitimer(signal.ITIMER_REAL, 0)
    except KeyboardInterrupt:
        count += 1
assert count > times // 3, count
assert np.allclose(compile(), np.sin(np.arange(8.0) * made) + np.cos(np.arange(8.0)) * made, 1e-4)
print("fine", count)
"""

THREADS = """
mesh = jax.make_mesh((8,), ("d",))
split = jax.NamedSharding(mesh, jax.P("d"))
wrong = []
until = time.monotonic() + 20 * times  # where cores are scarce, handing over Python's lock is slow
def work(number):
    try:
        for n in range(times):
            if time.monotonic() > until:
                break
            k = number * 1000 + n % 5
            f = jax.jit(lambda x: x * k + 1)
            x = jax.device_put(np.arange(16, dtype=np.float32), split if n % 2 else None)
            y = f(x)
            if n % 3 == 0:
                x.delete()
            z = jax.jit(lambda x: x + 1, donate_argnums=0)(y)
            assert np.array_equal(z, np.arange(16, dtype=np.float32) * k + 2), (number, n)
            try:
                jax.jit(lambda a: jax.pure_callback(fail, a, a))(z).block_until_ready()
            except jax.errors.JaxRuntimeError:
                pass
            if n % 4 == 0:
                gc.collect(0)
    except BaseException as error:
        wrong.append(error)
def fail(x):
    raise ValueError("no")
sys.setswitchinterval(1e-5)
threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
for thread in threads: thread.start()
for thread in threads: thread.join()
assert not wrong, wrong
print("fine")
"""

COLLECTED = """
gc.set_threshold(1)
f = jax.jit(lambda x: jnp.tanh(x) * 2)
x = jnp.ones(8)
class Knot:
    def __init__(self, value):
        self.value, self.me = value, self
for n in range(times):
    knots = [Knot(f(x)), Knot(jax.device_put(np.ones(4)))]
    jax.pure_callback(lambda v: v, x, x)
del knots
gc.collect()
print("fine", float(f(x)[0]) > 1)
"""

NESTED = """
inner = jax.jit(lambda x: x * 2)
def callback(x, depth):
    if depth == 0:
        return np.asarray(inner(x))
    outer = jax.jit(lambda v: jax.pure_callback(lambda w: callback(w, depth - 1), v, v))
    return np.asarray(outer(jnp.asarray(x)) + 1)
for _ in range(times // 10):
    assert callback(jnp.ones(3), 3).tolist() == [5, 5, 5]
x = jnp.ones(3)
def deep(n):
    try:
        return inner(x) if n == 0 else deep(n - 1)
    except RecursionError:
        return None
limit = sys.getrecursionlimit()
def probe(room):
    def go(n):
        return go(n - 1) if n else np.asarray(inner(jax.device_put(np.ones(3, np.float32))))
    return go(limit - room)
seen = set()
for room in range(5, 5 + 3 * times):
    try:
        assert probe(room).tolist() == [2, 2, 2]
        seen.add("done")
    except (RecursionError, jax.errors.JaxRuntimeError) as error:
        seen.add(type(error).__name__)
assert "done" in seen and len(seen) > 1, seen
assert inner(x).tolist() == [2, 2, 2]
for shape in ((1 << 45,), (1 << 20, 1 << 22)):
    try:
        jnp.zeros(shape, jnp.float32).block_until_ready()
    except Exception as error:
        assert "memory" in str(error).lower() or "RESOURCE_EXHAUSTED" in str(error), error
    else:
        raise AssertionError("so much memory")
print("fine", inner(x).tolist())
"""

SCRIPTS = {
    "freed": (FREED, 30),
    "interrupted": (INTERRUPTED, 100),
    "compiling": (COMPILING, 25),
    "threads": (THREADS, 6),
    "collected": (COLLECTED, 4),
    "nested": (NESTED, 20),
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_process_goes_on(name: str) -> None:
    script, times = SCRIPTS[name]
    assert run_on_weft(START.format(times=times) + script.format()).startswith("fine")


@pytest.mark.long
@pytest.mark.parametrize("name", SCRIPTS)
@pytest.mark.parametrize("turn", range(5))
def test_process_goes_on_for_long(name: str, turn: int) -> None:
    script, times = SCRIPTS[name]
    source = START.format(times=times * 8 + turn) + script.format()
    assert run_on_weft(source, timeout=1200).startswith("fine")


# Every Python function that JAX calls raises, in turn and at random.
FUZZED = """
from weft.jax import parts
from weft.jax.buffers import client
rng = random.Random(times)
armed, hit = {{}}, set()
def wrapped(name, function):
    def call(handles, args):
        if name in armed and rng.random() < armed[name][1]:
            hit.add(name)
            raise armed[name][0]
        function(handles, args)
    return call
for part in (client, parts):  # before the plugin is made, which takes its slots from them
    part.SLOTS = tuple([(name, wrapped(name, function)) for name, function in part.SLOTS])
SLOTS = dict((*client.SLOTS, *parts.SLOTS))
mesh = jax.make_mesh((2,), ("d",), devices=jax.devices()[:2])
split = jax.NamedSharding(mesh, jax.P("d"))
def fail(x):
    raise ValueError("no")
made = []
def use():
    made.append(0)
    k = len(made)
    x = jax.device_put(np.arange(8, dtype=np.float32))
    f = jax.jit(lambda x: x * 2 + k)
    assert np.array_equal(f(x), np.arange(8) * 2 + k)
    large = jax.device_put(np.arange(1 << 13, dtype=np.float32))  # not by native code alone
    assert large[5] == 5
    y = f(jax.device_put(np.arange(8, dtype=np.float32), split))
    assert np.array_equal(y, np.arange(8) * 2 + k)
    z = jax.device_put(y, jax.devices()[1])
    np.asarray(jax.device_put(z, jax.devices()[0]))
    compiled = f.lower(x).compile()
    compiled.as_text(), compiled.cost_analysis(), compiled.memory_analysis()
    np.from_dlpack(x), z.unsafe_buffer_pointer()
    slow = jax.jit(lambda v: jax.pure_callback(lambda w: w, v, v) * (k + 1))(x)
    slow.copy_to_host_async()
    slow.block_until_ready()
    jax.device_get(slow)
    slow.delete()
use()
needed = {{"Client_Compile", "LoadedExecutable_Execute", "Client_BufferFromHostBuffer"}}
kinds = (ValueError("no"), MemoryError(), KeyboardInterrupt(), SystemExit(3), RecursionError("x"))
def try_use():
    try:
        use()
    except KeyboardInterrupt:
        return True
    except BaseException as error:
        return True
    return False
for error in kinds[:times]:
    for name in SLOTS:
        armed[name] = error, 1.0
        before = set(hit)
        hit.discard(name)
        raised = False
        try:
            raised = try_use()
            for _ in range(3): pass
        except KeyboardInterrupt:
            raised = True
        armed.clear()
        assert raised or name not in hit or name not in needed, f"{{name}} raised in vain"
        hit |= before
    use()
for _ in range(4 * times):
    armed.update({{name: (rng.choice(kinds), 0.2) for name in SLOTS}})
    try:
        try_use()
        for _ in range(3): pass
    except KeyboardInterrupt:
        pass
    armed.clear()
    use()
from weft.jax.native.handles import Handles
def broken(self, error):
    raise MemoryError
whole, Handles.error = Handles.error, broken
armed["LoadedExecutable_Execute"] = ValueError("no"), 1.0
try:
    jnp.ones(3) + 1
except Exception as error:
    assert "exhausted" in str(error)
else:
    raise AssertionError("no error")
Handles.error = whole
armed.clear()
use()
print("fine", sorted(hit))
"""


def test_fuzzed() -> None:
    told = run_on_weft(START.format(times=1) + FUZZED.format(), devices=2)
    hit = {*re.findall(r"\w+", told)}
    assert {"LoadedExecutable_Execute", "Client_Compile", "Client_BufferFromHostBuffer"} <= hit


@pytest.mark.long
def test_fuzzed_for_long() -> None:
    run_on_weft(START.format(times=60) + FUZZED.format(), devices=2, timeout=1200)
