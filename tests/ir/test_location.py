"""Locations: the user's line, as MLIR's text says it."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.ir.location import UNKNOWN, Location, escape, fuse, unescape

CALL = '"dot"(callsite("f"("model.py":41:8 to :20) at callsite("g"("train.py":7:2) at unknown)))'


def test_frames_come_innermost_first():
    loc = Location(CALL)
    assert loc.frames == (("model.py", 41, 8), ("train.py", 7, 2))
    assert loc.line == ("model.py", 41)
    assert loc.name == "dot"
    assert loc.known and str(loc) == f"loc({CALL})"


def test_unknown_is_unknown():
    assert not UNKNOWN.known and UNKNOWN.line is None and UNKNOWN.name is None
    assert UNKNOWN.frames == () and UNKNOWN.describe() == "unknown"


def test_a_file_is_no_name():
    assert Location('"a.mlir":3:4').name is None
    assert Location('"jit(f)/add"').name == "jit(f)/add"
    assert Location('"jit(f)/add"').describe() == "jit(f)/add"


def test_describe_shows_the_source(tmp_path: Path):
    file = tmp_path / "model.py"
    file.write_text("import x\nh = x @ w  \n")
    assert Location(f'"{file}":2:5').describe() == f"{file}:2  h = x @ w"
    assert Location(f'"{file}":9:1').describe() == f"{file}:9"
    program = tmp_path / "a.mlir"
    program.write_text("module {}\n")
    assert Location(f'"{program}":1:3').describe() == f"{program}:1:3  module {{}}"


def test_fused_locations_keep_all_parts_once():
    a, b = Location('"a.py":1:1'), Location('"b.py":2:2')
    assert fuse() is UNKNOWN and fuse(UNKNOWN, UNKNOWN) is UNKNOWN
    assert fuse(a, UNKNOWN, a) is a
    both = fuse(a, b, a)
    assert both.text == 'fused["a.py":1:1, "b.py":2:2]'
    assert both.line == ("a.py", 1)


@given(st.text())
def test_strings_survive_their_escapes(text: str):
    escaped = escape(text)
    assert escaped.isascii() and '"' not in escaped and "\n" not in escaped
    assert unescape(escaped) == text


@pytest.mark.parametrize("text, meaning", [(r"a\nb", "a\nb"), (r"\22", '"'), (r"\\", "\\")])
def test_mlirs_own_escapes_are_understood(text: str, meaning: str):
    assert unescape(text) == meaning
