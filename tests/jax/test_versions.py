"""Versions of jaxlib that Weft was not tried with, and several processes: what users read."""

from __future__ import annotations

import re
import tomllib
import warnings

import pytest

from tests.jax.door import ROOT, start
from weft.errors import WeftError
from weft.jax import versions

INSTALL = "pip install 'jax>=0.10,<0.13' 'jaxlib>=0.10,<0.13'"


@pytest.fixture(autouse=True)
def warned_anew() -> None:
    versions._warn_of.cache_clear()


@pytest.mark.parametrize("found", ["0.4.38", "0.9.1", "0.9.10.dev1"])
def test_older_ones_are_refused(found: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "jaxlib_version", lambda: found)
    with pytest.raises(WeftError) as caught:
        versions.check_versions()
    text = f"jaxlib {found} is installed, but Weft speaks to jaxlib 0.10, 0.11, 0.12"
    assert (caught.value.message, caught.value.help) == (text, INSTALL)


@pytest.mark.parametrize("found", ["0.10.0", "0.10.3.dev20260101", "0.11.2", "0.12.0.1"])
def test_those_that_were_tried(found: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "jaxlib_version", lambda: found)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        versions.check_versions()


@pytest.mark.parametrize("found", ["0.13.0", "0.20.1", "1.0.0", "dev"])
def test_newer_ones_are_warned_of_once(found: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "jaxlib_version", lambda: found)
    with pytest.warns(RuntimeWarning) as caught:
        versions.check_versions()
        versions.check_versions()
    (warning,) = caught
    assert str(warning.message) == (
        f"Weft was tried with jaxlib 0.10, 0.11, 0.12, and jaxlib {found} is installed: "
        f"it may work, or fail in odd ways; {INSTALL}"
    )


_SOURCE = """
import jax
from weft.jax import versions
tried, versions.TRIED = versions.TRIED, ((9, 8),)
try:
    jax.devices()
except RuntimeError as error:
    print(error)

# A jaxlib that is newer than all: a warning, and it works.
versions.TRIED, versions.jaxlib_version = tried, lambda: "9.9.9"
print(len(jax.devices()), jax.jit(lambda a: a + 1)(1))
"""


def test_what_users_read() -> None:
    done = start(_SOURCE, "weft", devices=2, timeout=100)
    assert done.returncode == 0, done.stderr
    assert "is installed, but Weft speaks to jaxlib 9.8" in done.stdout
    assert "pip install 'jax>=9.8,<9.9' 'jaxlib>=9.8,<9.9'" in done.stdout
    assert done.stdout.endswith("2 2\n")
    assert done.stderr.count("jaxlib 9.9.9 is installed: it may work") == 1


_TOO_OLD = """
from dataclasses import replace
from weft.jax import abi, plugin, versions
for module in (plugin, versions):
    module.api = lambda: replace(abi.api(), version=(0, 20))
import jax
try:
    jax.devices()
except RuntimeError as error:
    print(error)
"""


def test_a_jaxlib_that_no_longer_speaks_our_version_of_pjrt_is_refused() -> None:
    done = start(_TOO_OLD, "weft", devices=2, timeout=100)
    assert done.returncode == 0, done.stderr
    assert "does not speak Weft's version 0.20 of PJRT's C API" in done.stdout
    assert "is older than the minimum supported version" in done.stdout
    assert "pip install 'jax>=0.10,<0.13'" in done.stdout


def test_metadata_and_docs_say_the_same() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    assert "jax>=0.10,<0.13" in extras["jax"] and "jaxlib>=0.10,<0.13" in extras["stablehlo"]
    pythons = re.findall(r"Python :: (3\.\d+)", "\n".join(project["classifiers"]))
    assert pythons == ["3.11", "3.12", "3.13"]
    for page in ("docs/jax.md", "README.md"):
        text = (ROOT / page).read_text()
        assert "jaxlib 0.10, 0.11 and 0.12" in text and "Python 3.11, 3.12 and 3.13" in text, page
