"""What users may rely on: the names that `import weft` gives, and how little it imports."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import weft

ROOT = Path(__file__).parent.parent
OPTIONAL = ("jax", "jaxlib", "torch", "llvmlite", "triton", "rich", "ray", "grpc", "scipy")


def test_the_names_are_these_and_no_others():
    names = ["Array", "Compiled", "Mesh", "Module", "P", "Unsupported", "WeftError"]
    names += [
        "__version__",
        "attention",
        "compile",
        "connect",
        "constrain",
        "devices",
        "evaluate",
        "load",
        "load_state",
        "parse",
        "plan",
        "put",
        "put_local",
        "save_state",
        "train_step",
    ]
    assert sorted(weft.__all__) == names


def test_every_name_is_there_and_documented():
    for name in weft.__all__:
        assert name == "__version__" or getattr(weft, name).__doc__


def test_the_version_is_that_of_the_package():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["version"] == weft.__version__


def test_import_weft_imports_no_optional_package():
    script = f"import sys, weft, weft.cli; print([p for p in {OPTIONAL} if p in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert done.stdout.strip() == "[]"


def test_names_are_imported_when_they_are_used():
    script = """
import sys, weft
assert "weft.errors" not in sys.modules and "numpy" not in sys.modules
assert weft.WeftError.__name__ == "WeftError" and "weft.pipeline" not in sys.modules
import weft.evaluate
assert callable(weft.evaluate) and weft.evaluate.__module__ == "weft.evaluate"
from weft import evaluate
assert evaluate is weft.evaluate
assert weft.machine.HOST.name == "host"
assert set(weft.__all__) <= set(dir(weft))
try:
    weft.no_such_name
except AttributeError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert done.stdout == "module 'weft' has no attribute 'no_such_name'\n"
