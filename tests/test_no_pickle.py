"""Nothing in Weft reads data that can run code."""

from __future__ import annotations

import ast
import re
from pathlib import Path

WEFT = Path(__file__).parent.parent / "weft"
FORBIDDEN = {*"pickle cPickle _pickle pickletools marshal shelve dill cloudpickle joblib".split()}
CALLS = {"eval", "exec"}
# These run text that Weft itself has written from classes and kernels, never text of a file.
WRITERS = {"records.py", "emit/triton/source.py"}
WORDS = re.compile(rf"\b(?:allow_pickle|{'|'.join(FORBIDDEN | CALLS)})\b")


def test_no_file_imports_a_pickler():
    paths = sorted(WEFT.rglob("*.py"))
    assert len(paths) > 500
    found = []
    for path in paths:
        text = path.read_text()
        if not WORDS.search(text):
            continue
        for node in ast.walk(ast.parse(text)):
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            elif isinstance(node, ast.keyword) and node.arg == "allow_pickle":
                names = ["pickle"] if getattr(node.value, "value", True) else []
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                writes = node.func.id == "exec" and path.relative_to(WEFT).as_posix() in WRITERS
                names = ["pickle"] if node.func.id in CALLS and not writes else []
            elif isinstance(node, ast.Constant) and node.value in FORBIDDEN:
                names = [str(node.value)]  # importlib.import_module("pickle")
            if FORBIDDEN & {name.partition(".")[0] for name in names}:
                found.append(f"{path.relative_to(WEFT)}:{node.lineno}")  # type: ignore[attr-defined]
    assert not found
