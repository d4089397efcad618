"""jax.numpy, jax.scipy and their neighbours give the same on Weft's devices as on JAX's own."""

from __future__ import annotations

import pytest

from tests.jax.door import start

GROUPS = (
    "elementwise",
    "reductions",
    "sorting",
    "shapes_and_places",
    "products",
    "decompositions",
    "special",
    "flow",
)


def _run(choose: str, groups: tuple[str, ...], *, wide: bool) -> None:
    source = f"""
from tests.jax import numpy_cases
from tests.jax.side_by_side import report
rows = [row for name in {groups} for row in getattr(numpy_cases, name)()]
report(numpy_cases.{choose}(rows))
"""
    done = start(source, "weft,cpu", devices=1, timeout=3000, JAX_ENABLE_X64=str(int(wide)))
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr[-20000:]}"


def test_some_functions() -> None:
    _run("some_cases", GROUPS, wide=True)


@pytest.mark.long
@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("group", GROUPS)
def test_each_function_with_every_type(group: str, wide: bool) -> None:
    _run("all_cases", (group,), wide=wide)
