"""Jobs in forked processes: results in order, errors raised here."""

from __future__ import annotations

import os
from functools import partial

import pytest

from weft.cli.in_processes import in_processes


def squared(number: int) -> dict[str, int]:
    return {"square": number * number, "process": os.getpid()}


def test_results_are_in_order():
    rows = in_processes([partial(squared, n) for n in range(7)], 3)
    assert [row["square"] for row in rows] == [n * n for n in range(7)]
    assert len({row["process"] for row in rows}) == 3
    assert in_processes([], 3) == []


def test_one_process_is_this_one():
    (row,) = in_processes([partial(squared, 3)], 4)
    assert row == {"square": 9, "process": os.getpid()}


def test_an_error_is_raised_here():
    def fail() -> None:
        raise ValueError("no such mesh")

    with pytest.raises(ValueError, match="no such mesh"):
        in_processes([partial(squared, 1), fail, partial(squared, 2)], 2)
    with pytest.raises(ValueError, match="no such mesh"):
        in_processes([fail, partial(squared, 1)], 2)
