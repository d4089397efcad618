"""The environment variables that Weft reads."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from weft.errors import WeftError
from weft.knobs import CACHE, KNOBS, TRACE, Knob, cache_folder
from weft.recording import FOLDER

WEFT = Path(__file__).parent.parent / "weft"


def test_they_are_few_and_explained():
    assert len(KNOBS) <= 8
    assert all(knob.name.startswith("WEFT_") and knob.about for knob in KNOBS)


def test_no_others_are_read():
    named = {n for path in WEFT.rglob("*.py") for n in re.findall(r"WEFT_\w+", path.read_text())}
    # `weft profile` sets its own for the processes that it starts.
    assert named - {FOLDER} == {knob.name for knob in KNOBS}


def test_a_knob_has_a_type(monkeypatch):
    monkeypatch.delenv(TRACE.name, raising=False)
    assert TRACE.value() is None
    monkeypatch.setenv(TRACE.name, "somewhere")
    assert TRACE.value() == Path("somewhere")


def test_a_wrong_form_is_refused(monkeypatch):
    knob = Knob("WEFT_SIZE", "a number", int, 3)
    monkeypatch.setenv("WEFT_SIZE", "many")
    with pytest.raises(WeftError, match="WEFT_SIZE='many' is invalid"):
        knob.value()


def without_home(**environment):
    """A user without a home folder, whose number is in no list, runs and compiles a program."""
    program = """if True:
        import pwd, sys

        def nobody(number):
            raise KeyError(number)

        pwd.getpwuid = nobody
        import numpy as np
        import weft

        text = "func.func @main(%x: tensor<3xf32>) -> tensor<3xf32> {"
        text += "%0 = stablehlo.negate %x : tensor<3xf32> return %0 : tensor<3xf32> }"
        assert np.asarray(weft.compile(text)(np.ones(3, np.float32))[0]).sum() == -3
    """
    kept = {k: v for k, v in os.environ.items() if k not in ("HOME", "XDG_CACHE_HOME", CACHE.name)}
    line = [sys.executable, "-c", program]
    return subprocess.run(line, env=kept | environment, capture_output=True, text=True)


def test_a_user_without_a_home_has_no_cache_and_is_told():
    done = without_home()
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("remembers nothing from run to run: the user has no home folder") == 1


@pytest.mark.parametrize("name", ["WEFT_CACHE", "XDG_CACHE_HOME"])
def test_a_user_without_a_home_may_name_a_cache(tmp_path, name):
    done = without_home(**{name: str(tmp_path / "kept")})
    assert (done.returncode, done.stderr) == (0, "")
    assert [f for f in (tmp_path / "kept").rglob("kernel/*/*") if f.is_file()]


def test_the_cache_of_a_user(monkeypatch):
    monkeypatch.setenv("WEFT_CACHE", "one")
    monkeypatch.setenv("XDG_CACHE_HOME", "two")
    monkeypatch.setenv("HOME", "/three")
    assert cache_folder() == Path("one")
    monkeypatch.setenv("WEFT_CACHE", "")
    assert cache_folder() == Path("two/weft")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path("/three/.cache/weft")
