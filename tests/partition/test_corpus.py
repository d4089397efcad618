"""The corpus, partitioned: all devices together give what one device gives."""

from __future__ import annotations

import pytest

from tests.partition.corpus import corpus_program
from tests.shard.corpus import PROGRAMS, cases

Key = tuple[str, str, str]
ALL = list(cases(PROGRAMS))
# Every program once on one mesh and on another, with annotations in turn.
SAMPLE: list[Key] = [
    (name, mesh, list(program.annotations)[n % len(program.annotations)])
    for number, (name, program) in enumerate(PROGRAMS.items())
    for n, mesh in ((number, "2x4"), (number + 2, "2x2x2"))
    if mesh in program.meshes
]


def label(key: Key) -> str:
    return "-".join(key).replace(" ", "_")


@pytest.mark.parametrize("key", SAMPLE, ids=label)
def test_a_sample(key: Key):
    corpus_program(*key).check()


@pytest.mark.parametrize("key", SAMPLE[::4], ids=label)
def test_a_sample_as_it_is_written(key: Key):
    corpus_program(*key, dtype="f32").check()


@pytest.mark.long
@pytest.mark.parametrize("dtype", ["f64", "f32"])
@pytest.mark.parametrize("key", ALL, ids=label)
def test_all(key: Key, dtype: str):
    corpus_program(*key, dtype=dtype).check()
