"""Every program is run by numpy and by kernels; every value is planned, however small."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.run.toy_target import ToyTarget
from weft.run import LocalProgram, plan
from weft.targets import target_named

TARGETS: dict[str, Any] = {
    "numpy": lambda: None,
    "toy": ToyTarget,
    "llvm": lambda: target_named("llvm"),
}


@pytest.fixture(autouse=True, scope="package")
def plan_everything() -> Iterator[None]:
    """Give even the smallest results a place in the arena."""
    before, plan.SMALL = plan.SMALL, 1
    yield
    plan.SMALL = before


@pytest.fixture(autouse=True, scope="module", params=list(TARGETS))
def target(request: pytest.FixtureRequest) -> Iterator[str]:
    """Run the tests of every file with every target, unless they name one themselves."""
    defaults = LocalProgram.__init__.__kwdefaults__
    before, defaults["target"] = defaults["target"], TARGETS[request.param]()
    yield request.param
    defaults["target"] = before
