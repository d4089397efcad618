"""PyTorch's database of ops: samples of every op equal eager; the holes are known by name."""

from __future__ import annotations

import warnings

import pytest

from tests.capture.torch.opinfo import DTYPES, Outcome, entries, summary, sweep

pytest.importorskip("torch")
pytest.importorskip("expecttest", reason="PyTorch's database of ops needs it")

SAMPLED = 41  # every so many ops, in a quick run


def checked(chosen, dtypes, most) -> list[Outcome]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = sweep(chosen, dtypes, most, lambda outcome: None)
    print(summary(made))
    bad = [o for o in made if o.state in ("wrong", "failed")]
    assert not bad, "\n".join(f"{o.op} {o.dtype}: {o.what}" for o in bad)
    return made


@pytest.mark.long
def test_a_sample_of_all_ops_equals_eager():
    made = checked(entries()[::SAMPLED], DTYPES[:3], 1)
    assert sum(o.state == "passed" for o in made) > 15


@pytest.mark.long
@pytest.mark.parametrize("dtype", DTYPES)
def test_all_ops_equal_eager(dtype):
    checked(entries(), [dtype], None)
