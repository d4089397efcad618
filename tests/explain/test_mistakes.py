"""Mistakes that users make: explaining names the line, and what it advises mends them."""

from __future__ import annotations

import pytest

import weft
from tests.explain.mistakes import MISTAKES, Mistake, Sharded
from weft.advise import Explained, explain
from weft.explain.state import state_results
from weft.ir.module import Module
from weft.machine import machine
from weft.predict import predict

QUICK = ("split_cache",)
CASES = [
    pytest.param(m, id=name, marks=() if name in QUICK else pytest.mark.long)
    for m in MISTAKES
    for name in [m.program.__name__]
]


def module_of(program: Sharded) -> Module:
    made = weft.compile(
        program.function, mesh=program.mesh, in_shardings=program.shardings,
        out_shardings=program.results, donate_argnums=program.donated, plan=program.plan,
    )  # fmt: skip
    return made.captured_for(*program.arguments).module


def false_advice(found: Explained) -> int:
    """How many pieces of advice do not shorten the step of the whole program."""
    where = found.prediction.machine
    steps = [predict(a.module, where, whole=True, apart=True).seconds for a in found.advice]
    before = [found.prediction.seconds, *steps]
    return sum(after >= first for first, after in zip(before, steps, strict=False))


def check(mistake: Mistake) -> str:
    """Explain a program with and without its mistake; the row of a table."""
    where = machine(mistake.machine)
    wrong, right = (module_of(mistake.program(is_wrong)) for is_wrong in (True, False))
    found = explain(wrong, where)
    said = [*(a.text for a in found.advice), *(f.text for f in found.findings)]
    assert any(mistake.said in text for text in said), said
    locs = [*(row.loc for row in found.collectives), *(a.loc for a in found.advice)]
    locs += [f.loc for f in found.findings if f.loc is not None]
    assert any(mistake.line in loc.describe() for loc in locs), [loc.describe() for loc in locs]
    # What is advised is about as good as what the author would write, or better.
    mended = explain(right, where)
    best = found.advice[-1].after
    assert best <= 1.1 * mended.prediction.seconds < 1.1 * found.prediction.seconds
    wrong_advice = false_advice(found) + false_advice(mended)
    assert wrong_advice == 0
    times = [found.prediction.seconds, mended.prediction.seconds, best]
    advice = len(found.advice) + len(mended.advice)
    shown = " ".join(f"{1e6 * t:7.0f}" for t in times)
    return f"{mistake.program.__name__:20} {shown} us, {advice} pieces of advice, 0 false"


@pytest.mark.parametrize("mistake", CASES)
def test_a_mistake_is_named_and_mended(mistake: Mistake, capsys: pytest.CaptureFixture[str]):
    row = check(mistake)
    with capsys.disabled():
        print(row)


@pytest.mark.long
def test_mistakes_in_plans_of_modules_are_named_and_mended(capsys: pytest.CaptureFixture[str]):
    pytest.importorskip("torch")
    from tests.explain.mistakes_torch import MISTAKES as PLANS

    for mistake in PLANS:
        row = check(mistake)
        with capsys.disabled():
            print(row)


def program(name: str) -> Mistake:
    return next(m for m in MISTAKES if m.program.__name__ == name)


@pytest.mark.parametrize("is_wrong", [True, False])
def test_heads_that_an_axis_does_not_divide_are_named(is_wrong: bool):
    mistake = program("indivisible_heads")
    found = explain(module_of(mistake.program(is_wrong)), machine("8xh100"), tries=0)
    texts = [f.text for f in found.findings if f.kind == "indivisible"]
    assert any(mistake.said in text for text in texts) is is_wrong
    assert all("sizes that divide it are 2, 3, 4, 6, 12" in text for text in texts)


def test_a_cache_that_is_updated_is_state():
    module = module_of(program("split_cache").program(False))
    types = module.function("main").arg_types
    state = state_results(module)
    assert {str(types[n]): r for n, r in state.items()} == {"tensor<32x8192x16x128xbf16>": 2}
    assert sorted(state.values()) == [1, 2]
