"""Versions of jaxlib that Weft does not know, and several processes: refused with what to do."""

from __future__ import annotations

import pytest

from tests.jax.door import start
from weft.errors import WeftError
from weft.jax import versions


@pytest.mark.parametrize("found", ["0.9.1", "0.11.0", "1.10.2", "dev"])
def test_refused(found: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "jaxlib_version", lambda: found)
    with pytest.raises(WeftError) as caught:
        versions.check_versions()
    assert caught.value.message == f"jaxlib {found} is installed, but Weft speaks to jaxlib 0.10"
    assert "pip install" in caught.value.help


@pytest.mark.parametrize("found", ["0.10.0", "0.10.2", "0.10.3.dev20260101"])
def test_taken(found: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "jaxlib_version", lambda: found)
    versions.check_versions()


_SOURCE = """
from jax._src import distributed
distributed.global_state.client, distributed.global_state.num_processes = object(), 2
import jax
try:
    jax.devices()
except RuntimeError as error:
    print(error)
distributed.global_state.client = None

from weft.jax import versions
versions.SUPPORTED = ((0, 8),)
try:
    jax.devices()
except RuntimeError as error:
    print(error)
"""


def test_what_users_read() -> None:
    done = start(_SOURCE, "weft", devices=2, timeout=100)
    assert done.returncode == 0, done.stderr
    assert "jax.distributed with 2 processes: all of Weft's devices are in one" in done.stdout
    assert "is installed, but Weft speaks to jaxlib 0.8" in done.stdout
    assert "pip install 'jax==0.8.*' 'jaxlib==0.8.*'" in done.stdout
