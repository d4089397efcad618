"""Programs from JAX: the sharding of every value is the one that Shardy gives it."""

from __future__ import annotations

import pytest

from tests.shard.corpus import LONG, PROGRAMS, annotated, cases
from tests.shard.whole import differences


def show(case: tuple[str, str, str]) -> str:
    return "-".join(case).replace(" ", "-")


@pytest.mark.parametrize("case", list(cases(PROGRAMS)), ids=show)
def test_every_sharding_is_shardys(case):
    assert not differences(annotated(*case))


@pytest.mark.long
@pytest.mark.parametrize("case", list(cases(LONG)), ids=show)
def test_every_sharding_is_shardys_in_deep_programs(case):
    assert not differences(annotated(*case))
