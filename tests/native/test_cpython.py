"""Pythons that were not tried: their objects are not read in memory, and a warning says so."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import pytest

from tests.untried import ROOT, UNTRIED
from weft.native import cpython


@pytest.fixture(autouse=True)
def warned_anew():
    yield
    cpython.reads_objects.cache_clear()


def test_this_python_was_tried():
    assert cpython.untried() is None and cpython.reads_objects()


@pytest.mark.parametrize(
    "name, value, shown",
    [
        ("version_info", (3, 14, 2, "final", 0), "CPython 3.14.2"),
        ("implementation", SimpleNamespace(name="pypy"), "PyPy 3"),
        ("getobjects", list, "with traced references"),
        ("version", "3.13.0 experimental free-threading build (main)", "free-threaded"),
    ],
)
def test_others_were_not(name, value, shown, monkeypatch):
    monkeypatch.setattr(sys, name, value, raising=False)
    assert shown in str(cpython.untried())


def test_it_is_said_once(monkeypatch):
    cpython.reads_objects.cache_clear()
    monkeypatch.setattr(cpython, "untried", lambda: "CPython 3.99.0")
    with pytest.warns(RuntimeWarning) as caught:
        assert not cpython.reads_objects() and not cpython.reads_objects()
    (warning,) = caught
    assert str(warning.message) == (
        "Weft was not tried on CPython 3.99.0 but on CPython 3.11, 3.12, 3.13: native code does "
        "not read Python's objects, so calls of small programs are slower"
    )


SCRIPT = """
import numpy as np, weft
from weft.native import cpython
assert cpython.untried() and cpython.address_of is cpython._ask
ADD = '''func.func @main(%x: tensor<4x8xTYPE>, %y: tensor<4x8xTYPE>) -> tensor<4x8xTYPE> {
  %0 = stablehlo.add %x, %y : tensor<4x8xTYPE>
  return %0 : tensor<4x8xTYPE>
}'''
for type, dtype in (("f32", np.float32), ("i64", np.int64), ("i1", np.bool_)):
    add = weft.compile(weft.parse(ADD.replace("TYPE", type)))
    x, y = np.arange(32).reshape(4, 8) % 3, np.arange(32).reshape(4, 8) % 2
    x, y = x.astype(dtype), y.astype(dtype)
    for _ in range(3):
        (made,) = add(x, y)
        np.testing.assert_array_equal(np.asarray(made), x + y)
print("done")
"""


def test_programs_run_there_all_the_same():
    done = subprocess.run(
        [sys.executable, "-c", UNTRIED + SCRIPT], cwd=ROOT, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
    assert done.stderr.count("RuntimeWarning: Weft was not tried on") == 1, done.stderr
