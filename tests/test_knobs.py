"""The environment variables that Weft reads."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from weft.errors import WeftError
from weft.knobs import KNOBS, TRACE, Knob

WEFT = Path(__file__).parent.parent / "weft"


def test_they_are_few_and_explained():
    assert len(KNOBS) <= 8
    assert all(knob.name.startswith("WEFT_") and knob.about for knob in KNOBS)


def test_no_others_are_read():
    named = {n for path in WEFT.rglob("*.py") for n in re.findall(r"WEFT_\w+", path.read_text())}
    assert named == {knob.name for knob in KNOBS}


def test_a_knob_has_a_type(monkeypatch):
    monkeypatch.delenv(TRACE.name, raising=False)
    assert TRACE.value() is None
    monkeypatch.setenv(TRACE.name, "somewhere")
    assert TRACE.value() == Path("somewhere")


def test_a_wrong_form_is_refused(monkeypatch):
    knob = Knob("WEFT_SIZE", "a number", int, 3)
    monkeypatch.setenv("WEFT_SIZE", "many")
    with pytest.raises(WeftError, match="WEFT_SIZE='many' has the wrong form"):
        knob.value()
