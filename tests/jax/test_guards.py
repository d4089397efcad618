"""JAX's guards of transfers see what Weft's devices and the host send each other."""

from __future__ import annotations

from tests.jax.door import run_on_weft

_GUARDS = """
import pickle, threading
import jax, jax.numpy as jnp, numpy as np

def refused(call):
    try:
        call()
    except Exception as error:
        assert "Disallowed" in str(error), error
        return True
    return False

def fresh():
    with jax.transfer_guard("allow"):
        return jnp.ones(3) + 1

reads = (np.asarray, str, pickle.dumps, lambda x: x.copy_to_host_async(), lambda x: np.add(x, 1))
for read in reads:
    with jax.transfer_guard_device_to_host("disallow"):
        assert refused(lambda: read(fresh()))
        jax.device_get(fresh())
        x = fresh()
        with jax.transfer_guard("allow"):
            read(x)
        read(x)  # it is there already
    read(fresh())
with jax.transfer_guard_device_to_host("disallow_explicit"):
    assert refused(lambda: jax.device_get(fresh()))
    seen = []
    other = threading.Thread(target=lambda: seen.append(np.asarray(fresh())))
    other.start()
    other.join()
    assert seen[0].tolist() == [2, 2, 2]  # another thread is not guarded
with jax.transfer_guard_host_to_device("disallow"):
    assert refused(lambda: jnp.ones(3))
    jax.device_put(np.ones(3))
with jax.transfer_guard_device_to_device("disallow_explicit"):
    assert refused(lambda: jax.device_put(x, jax.devices()[1]))
y = fresh()
assert np.shares_memory(np.asarray(y), np.asarray(y))  # nobody guards: it is read where it is
assert memoryview(y).shape == (3,)
print("done")
"""


def test_guards() -> None:
    assert run_on_weft(_GUARDS) == "done\n"


def test_guard_that_was_set_before() -> None:
    source = """
import jax, numpy as np
jax.config.update("jax_transfer_guard_device_to_host", "disallow")
x = jax.device_put(np.ones(3))
try:
    np.asarray(x)
except Exception as error:
    print("Disallowed device-to-host transfer" in str(error))
jax.config.update("jax_transfer_guard_device_to_host", None)
print(np.asarray(x))
"""
    assert run_on_weft(source) == "True\n[1. 1. 1.]\n"
