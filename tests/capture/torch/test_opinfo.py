"""PyTorch's database of ops: samples of every op equal eager; the holes are known by name."""

from __future__ import annotations

import warnings

import pytest

from tests.capture.torch.opinfo import DTYPES, Outcome, entries, op_names, summary, sweep

pytest.importorskip("torch")
pytest.importorskip("expecttest", reason="PyTorch's database of ops needs it")

FEW = ("clamp", "cumsum", "index_put", "scatter_reduce.sum")  # of core ATen
HOLES = {"nonzero"}  # of core ATen: its size depends on the data
SAMPLED = 41  # every so many ops, in a quick run


def checked(chosen, dtypes, most) -> list[Outcome]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = sweep(chosen, dtypes, most, lambda outcome: None)
    print(summary(made))
    bad = [o for o in made if o.state in ("wrong", "failed")]
    assert not bad, "\n".join(f"{o.op} {o.dtype}: {o.what}" for o in bad)
    return made


def test_a_few_ops_equal_eager():
    few = [e for e in entries(core=True) if op_names(e) in FEW]
    assert len(few) == len(FEW)
    made = checked(few, ["float32", "int64"], 1)
    assert sum(o.state == "passed" for o in made) >= 6


@pytest.mark.long
@pytest.mark.parametrize("dtype", DTYPES)
def test_core_ops_equal_eager(dtype):
    made = checked(entries(core=True), [dtype], 1)
    assert {o.op for o in made if o.state == "refused"} <= HOLES


@pytest.mark.long
def test_a_sample_of_all_ops_equals_eager():
    made = checked(entries()[::SAMPLED], DTYPES[:3], 1)
    assert sum(o.state == "passed" for o in made) > 15


@pytest.mark.long
@pytest.mark.parametrize("dtype", DTYPES)
def test_all_ops_equal_eager(dtype):
    checked(entries(), [dtype], None)
