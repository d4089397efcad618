"""JAX finds Weft, and leaves alone what does not ask for it."""

from __future__ import annotations

from tests.jax.door import run_on_weft, start


def test_default_backend_stays() -> None:
    source = "import jax; print(jax.default_backend(), [*jax._src.xla_bridge.backends()])"
    done = start(source, "", devices=8, timeout=100)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[0] == "cpu"
    assert "weft" not in done.stdout


def test_weft_is_imported_only_where_asked_for() -> None:
    source = "import sys, jax; jax.devices(); print('weft' in sys.modules)"
    for platform in ("", "cpu"):
        assert start(source, platform, devices=1, timeout=100).stdout == "False\n"


def test_devices() -> None:
    source = """
import jax
print(jax.default_backend(), len(jax.devices()), jax.devices()[2])
print([memory.kind for memory in jax.devices()[0].addressable_memories()])
assert jax.devices("cpu")[0].platform == "cpu"  # the host's own is there, too
assert jax.config.jax_platforms == "weft"  # what the user has set stays as it was
"""
    lines = run_on_weft(source, devices=3).splitlines()
    assert lines == ["weft 3 WeftDevice(id=2)", "['device', 'pinned_host', 'unpinned_host']"]


def test_configure() -> None:
    source = """
import weft.jax
weft.jax.configure(devices=5)
import jax
print(len(jax.devices()))
try:
    weft.jax.configure(devices=6)
except weft.WeftError as error:
    print(error.message)
"""
    assert run_on_weft(source) == "5\nJAX has 5 devices of Weft already\n"
