"""The tour shows what the compiler makes of its example: every text, and the pictures."""

from __future__ import annotations

import importlib.util
from functools import cache

import pytest

from tests.pages import ROOT
from weft.pipeline import STAGES


@cache
def script():
    spec = importlib.util.spec_from_file_location("tour", ROOT / "docs" / "tour.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def pinned(package: str) -> str:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return next(line.partition("==")[2] for line in lines if line.startswith(f"{package}=="))


def test_the_tour_is_up_to_date():
    jax = pytest.importorskip("jax")
    pytest.importorskip("llvmlite")
    if jax.__version__ != pinned("jax"):
        pytest.skip(f"the page is written with JAX {pinned('jax')}, which lowers in its own way")
    for path, text in script().files(script().Tour()).items():
        assert path.read_text() == text, f"{path.name} is out of date: run `make tour`"


def test_every_stage_has_a_block():
    page = script().PAGE.read_text()
    blocks = [name for name, _ in script()._BLOCK.findall(page)]
    assert len(blocks) == page.count("<!-- ")  # none is left as it was written by hand
    assert {*STAGES} <= {*blocks}


def test_wrapping_keeps_every_character():
    text = "  func.func @main(" + ", ".join(f"%arg{n}: tensor<8x64xf32>" for n in range(9)) + ") {"
    lines = script().wrapped(text).splitlines()
    assert len(lines) > 1 and all(len(line) <= 100 for line in lines)
    assert "".join(text.split()) == "".join("".join(lines).split())
