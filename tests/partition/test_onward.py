"""Partitioned programs, optimized and run in lockstep, still give what one device gives."""

from __future__ import annotations

import pytest

from tests.partition.corpus import corpus_program
from tests.partition.fuzz import triple
from tests.partition.onward import check_onward
from tests.partition.test_corpus import ALL, Key, label
from tests.partition.test_xla import SHORT


@pytest.mark.parametrize("key", SHORT, ids=label)
def test_a_sample(key: Key):
    check_onward(corpus_program(*key))


@pytest.mark.parametrize("start", range(0, 100, 50))
def test_random_programs(start: int):
    for seed in range(start, start + 50):
        check_onward(triple(seed))


@pytest.mark.long
@pytest.mark.parametrize("key", ALL, ids=label)
def test_all(key: Key):
    check_onward(corpus_program(*key))


@pytest.mark.long
@pytest.mark.parametrize("start", range(1000, 2000, 50))
def test_many_random_programs(start: int):
    for seed in range(start, start + 50):
        check_onward(triple(seed))
