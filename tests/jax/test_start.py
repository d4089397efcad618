"""What `jax.devices()` costs: no compiler is imported, and no device made that is not used."""

from __future__ import annotations

from tests.jax.door import run_on_weft, start
from weft.jax import parts
from weft.jax.abi import api
from weft.jax.buffers import client
from weft.jax.device_count import MOST_DEVICES
from weft.jax.native.functions import asks_python

_START = """
import sys, time
import jax

begin = time.process_time()
count = len(jax.devices())
spent = time.process_time() - begin
assert spent < 1.0, spent  # a tenth of it on a quiet machine
late = [name for name in ("weft.pipeline", "weft.ops", "weft.run") if name in sys.modules]
assert not late, late
from weft.jax.plugin import the_plugin

used = the_plugin().client.devices._spaces
assert not used
assert jax.devices()[-1].default_memory().kind == "device" and not used
x = jax.device_put(1.0, jax.devices()[-1])
assert float(jax.jit(lambda a: a + 1)(x)) == 2.0
assert len(used) <= 2, [*used]  # the memories of the first and the last device at most
print(count, jax.devices()[-1], jax.devices()[-1].addressable_memories()[1])
"""


def test_starts_without_the_compiler() -> None:
    # JAX's own CPU devices, which would be as many, take minutes.
    assert run_on_weft(_START, devices=MOST_DEVICES, XLA_FLAGS="") == (
        f"{MOST_DEVICES} WeftDevice(id={MOST_DEVICES - 1}) weft:{MOST_DEVICES - 1} pinned_host\n"
    )


def test_a_cpu_device_beside_each() -> None:
    """As `jax.experimental.colocated_python` needs; a number that the user sets is kept."""
    script = "import jax; from jax.experimental.colocated_python import colocated_cpu_devices as c"
    script += "\nn = len(jax.devices()), len(jax.devices('cpu'))"
    script += "; print(*n, [d.id for d in c(jax.devices())])"
    assert run_on_weft(script, devices=4, XLA_FLAGS="") == "4 4 [0, 1, 2, 3]\n"
    script = "import jax; print(len(jax.devices()), len(jax.devices('cpu')))"
    assert run_on_weft(script, devices=4, XLA_FLAGS="", JAX_NUM_CPU_DEVICES="2") == "4 2\n"


def test_too_many_devices_are_refused() -> None:
    done = start("import jax; jax.devices()", "weft", devices=1_000_000, timeout=300, XLA_FLAGS="")
    assert done.returncode != 0
    assert "error: 1,000,000 devices for JAX: at most 16,384" in done.stderr
    assert "help: set WEFT_DEVICES to at most 16384; a mesh of more: weft.compile" in done.stderr


def test_every_slot_of_python_is_one_that_native_code_asks_for() -> None:
    filled = [name for name, _ in (*client.SLOTS, *parts.SLOTS)]
    assert len(filled) == len({*filled}) == 41
    spoken = api()
    named = {*spoken.slots, *(name for names in spoken.extensions.values() for name in names)}
    assert [name for name in filled if name not in named or not asks_python(name)] == []
