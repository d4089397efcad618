"""A machine that lacks an optional package says what to install, and does all the rest."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
PROGRAM = """func.func @main() -> tensor<2xi32> {
  %0 = stablehlo.constant dense<[1, 2]> : tensor<2xi32>
  check.expect_eq_const %0, dense<[1, 2]> : tensor<2xi32>
  return %0 : tensor<2xi32>
}
"""


@pytest.fixture
def program(tmp_path):
    (tmp_path / "p.mlir").write_text(PROGRAM)
    return str(tmp_path / "p.mlir")


def weft_without(package: str, *line: str) -> subprocess.CompletedProcess[str]:
    """A command line on a machine that lacks a package."""
    script = f"import sys; sys.modules[{package!r}] = None; from weft.cli import main; "
    script += f"sys.exit(main({list(line)!r}))"
    return subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True)


def test_without_rich_a_table_has_no_colours():
    done = weft_without("rich", "ops", "dot_general")
    assert (done.returncode, done.stderr) == (0, "")
    assert "\033[" not in done.stdout


@pytest.mark.parametrize("line", [["ops", "--json"], ["eval", "FILE", "--json"], ["check", "FILE"]])
def test_without_rich_the_rest_works(program, line):
    done = weft_without("rich", *(program if word == "FILE" else word for word in line))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout


def test_without_rich_conformance_writes_its_report(program, tmp_path):
    out = tmp_path / "out.json"
    done = weft_without("rich", "conformance", program, "--json", str(out))
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(out.read_text()) == [{"file": "p.mlir", "status": "pass", "detail": ""}]


def test_without_jaxlib_reading_is_refused(program):
    done = weft_without("jaxlib", "check", program)
    assert done.returncode == 1
    assert "needs the package jaxlib" in done.stderr
    assert "pip install 'weft[stablehlo]'" in done.stderr


def test_every_extra_named_in_an_error_exists():
    named = set[str]()
    for path in (ROOT / "weft").rglob("*.py"):
        named |= set(re.findall(r'missing_extra\(\s*"[^"]+",\s*"([^"]+)"', path.read_text()))
    assert named
    assert named <= set(EXTRAS)


def test_the_core_needs_numpy_and_ml_dtypes_only():
    assert [re.match(r"\w+", need)[0] for need in PROJECT["dependencies"]] == ["numpy", "ml_dtypes"]


def test_the_demo_needs_no_torch():
    makefile = (ROOT / "Makefile").read_text()
    assert "-e '.[jax,cpu,cli]'" in makefile
    extras = ("jax", "cpu", "cli")
    needs = {re.match(r"\w+", need)[0] for extra in extras for need in EXTRAS[extra]}
    assert needs == {"jax", "llvmlite", "weft", "rich"}


def test_what_is_tested_is_pinned():
    pinned = re.findall(r"^([\w-]+)==", (ROOT / "constraints.txt").read_text(), re.M)
    needed = {"numpy", "ml_dtypes", "torch", "transformers", "triton", "jax", "jaxlib"}
    needed |= {"grpcio", "llvmlite", "rich"}
    tools = {"flatbuffers", "hypothesis", "mypy", "optax", "pytest", "pytest-xdist", "ruff"}
    tools |= {"expecttest"}
    assert needed | tools == set(pinned)
