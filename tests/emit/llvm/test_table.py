"""The table of the llvm target: every op has one answer, with a reason where it is no kernel."""

from __future__ import annotations

import pytest

from weft.emit.llvm.math import pointwise
from weft.emit.llvm.single import emit as single
from weft.emit.llvm.table import TABLE
from weft.ir.op import Op
from weft.ops import OPS


def test_there_is_no_hole():
    assert [op.name for op in OPS if op not in TABLE] == []


def test_nothing_else_is_in_it():
    assert [op.name for op in TABLE if op not in OPS] == []


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_what_is_not_emitted_says_why(op: type[Op]):
    cell = TABLE[op]
    assert bool(cell.why) == (cell.how != "emitted")
    assert cell.where or cell.how in ("unsupported", "decomposed")


def test_emitters_are_in_the_table():
    for op in (*single.EMIT, *pointwise.EMIT):
        assert TABLE[op].how == "emitted", op.name
