"""Every program is run by numpy and by kernels; every value is planned, however small.

Programs of the toy target are written as text and read back before they run.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.run.device_target import DeviceTarget, Enqueued
from tests.run.toy_target import ToyTarget
from weft import pipeline
from weft.emit.numpy.target import NUMPY
from weft.executable.items import Tiled
from weft.executable.plan import Plan
from weft.executable.read import read_tiled
from weft.executable.text import tiled_text
from weft.executable.verify import verify_tiled
from weft.ops.custom_calls.callbacks import host_functions
from weft.pipeline import local_program
from weft.run import LocalProgram
from weft.targets import target_named
from weft.tile.memory import plan as planning

TARGETS: dict[str, Any] = {
    "numpy": lambda: NUMPY,
    "toy": ToyTarget,
    "llvm": lambda: target_named("llvm"),
    "device": DeviceTarget,
    "enqueued": Enqueued,
}


@pytest.fixture(autouse=True, scope="package")
def plan_everything() -> Iterator[None]:
    """Give even the smallest results a place in the arena."""
    before, planning.SMALL = planning.SMALL, 1
    yield
    planning.SMALL = before


@pytest.fixture(autouse=True, scope="module", params=["numpy", "toy", "llvm"])
def target(request: pytest.FixtureRequest) -> Iterator[str]:
    """Run the tests of every file with every target, unless they name one themselves."""
    defaults = local_program.__kwdefaults__
    before, defaults["target"] = defaults["target"], TARGETS[request.param]()
    if request.param == "toy" and not getattr(request.module, "WANTS_NODES", False):
        pipeline.LocalProgram = read_back
    yield request.param
    pipeline.LocalProgram = LocalProgram
    defaults["target"] = before


def read_back(tiled: Tiled, plan: Plan, *rest: Any) -> LocalProgram:
    """A program as it is after its text was written and read; what calls Python has no text."""
    if host_functions(tiled.module):
        return LocalProgram(tiled, plan, *rest)
    text = tiled_text(tiled, plan)
    again = read_tiled(text.text, text.resources)
    verify_tiled(*again)
    written = tiled_text(*again)
    assert written.text == text.text
    for name, array in text.resources.items():
        assert np.array_equal(written.resources[name], array, equal_nan=array.dtype.kind in "fc")
    return LocalProgram(*again, *rest)
