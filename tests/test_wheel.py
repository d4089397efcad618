"""The wheel: what is in it is all that a machine needs, and JAX finds Weft by it."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
WHEEL = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]


def test_it_holds_the_package_and_the_plugin():
    assert WHEEL["wheel"]["packages"] == ["weft", "jax_plugins"]
    # A namespace of several packages' plugins: a file there would hide those of others.
    assert not (ROOT / "jax_plugins" / "__init__.py").exists()
    assert (ROOT / "jax_plugins" / "weft" / "__init__.py").exists()


def test_the_pages_say_how_to_install_it():
    for page in ("README.md", "docs/install.md"):
        text = (ROOT / page).read_text()
        assert "pip wheel --no-deps -w dist ." in text
        assert "pip install -c constraints.txt -e '.[jax,cpu,cli]'" in text


@pytest.mark.long
def test_it_is_built_and_used(tmp_path):
    """It is unpacked beside the packages that are installed here, away from the clone."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
    subprocess.run([*pip, "wheel", "--no-deps", "-w", str(tmp_path), str(ROOT)], check=True)
    (wheel,) = tmp_path.glob("weft-*.whl")
    there = tmp_path / "there"
    subprocess.run([*pip, "install", "--no-deps", "--target", str(there), str(wheel)], check=True)
    where = os.environ | {"PYTHONPATH": str(there), "JAX_PLATFORMS": "weft"}
    program = "import jax, weft; print(weft.__file__, jax.devices()[0].platform)\n"
    program += "print(float(jax.jit(lambda x: x + 1)(1.0)))"
    line = [sys.executable, "-c", program]
    done = subprocess.run(line, cwd=tmp_path, env=where, capture_output=True, text=True)
    assert done.stdout.split() == [str(there / "weft" / "__init__.py"), "weft", "2.0"], done.stderr
    line = [sys.executable, "-m", "weft", "--help"]
    done = subprocess.run(line, cwd=tmp_path, env=where, capture_output=True, text=True)
    assert done.returncode == 0 and "doctor" in done.stdout
