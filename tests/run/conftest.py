"""Every value is planned in these tests, however small, so that planned memory is tested."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from weft.run import plan


@pytest.fixture(autouse=True, scope="package")
def plan_everything() -> Iterator[None]:
    """Give even the smallest results a place in the arena."""
    before, plan.SMALL = plan.SMALL, 1
    yield
    plan.SMALL = before
