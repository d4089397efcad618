"""Kernels that verify touch nothing but their operands, whatever they compute."""

from __future__ import annotations

import ast
import subprocess
import sys

import pytest


@pytest.mark.skipif(sys.platform != "linux", reason="fences are made by mprotect")
@pytest.mark.parametrize(
    ("first", "count", "least"),
    [(0, 300, 10), pytest.param(10_000, 10_000, 400, marks=pytest.mark.long)],
)
def test_mutants_between_fences(first: int, count: int, least: int):
    """In a process of their own: one that reads or writes beyond its operands kills it."""
    command = [sys.executable, "-m", "tests.emit.llvm.fenced", str(first), str(count)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = ran.stdout.splitlines()
    assert ran.returncode == 0, "\n".join([*lines[-30:], ran.stderr[-2000:]])
    counts = ast.literal_eval(lines[-1])
    assert counts["run"] >= least
    assert counts["refused"] >= count // 2
