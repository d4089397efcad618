"""Every primitive of JAX gives the same on Weft's devices as on JAX's own."""

from __future__ import annotations

import importlib.util

import pytest

from tests.jax.door import start

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("absl") is None, reason="JAX's list of uses needs absl"
)


def _run(cases: str) -> None:
    source = f"""
from tests.jax.primitive_cases import every_use, one_use_each
from tests.jax.side_by_side import report
report({cases})
"""
    done = start(source, "weft,cpu", devices=1, timeout=3000, JAX_ENABLE_X64="1")
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr[-20000:]}"


def test_one_use_of_each() -> None:
    _run("one_use_each()")


@pytest.mark.long
@pytest.mark.parametrize("part", range(8))
def test_every_use(part: int) -> None:
    _run(f"every_use({part}, 8)")
