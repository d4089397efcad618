"""Which tests reach which statements of weft/, for `tests/mutants.py`.

    make reach    # all tests once, in a copy of the tree with probes: build/reach
    make reach ARGS=tests/optimize  # new tests, beside what is recorded of the others

A probe before every statement that can be changed sets a byte of a map in shared memory; processes
that tests start map the same file. That costs a tenth of what a tracer does, and nothing is lost
when a process is killed. A plugin of pytest reads and clears the map after each test, and forgets
what the disk cache holds beside machine code before each file of tests, so that programs compile
again. Statements of modules and classes run once, at import: they have the tests of their file.
"""

from __future__ import annotations

import ast
import base64
import builtins
import difflib
import itertools
import json
import mmap
import os
import shutil
import subprocess
import sys
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from tests.changes import mutants

ROOT = Path(__file__).resolve().parents[1]
RECORD = ROOT / "build" / "reach"
MAP = "WEFT_REACH"  # names the file of the map, for processes that tests start
HEADER = "weft_reach_map"
PROBES = (b"_weft_probes[", b"import weft_reach_map")  # lines of a copy that its original lacks
# What every changed module imports: the map as a builtin, so that copied functions find it, too.
HEADER_TEXT = f"""import builtins, mmap, os
if not hasattr(builtins, "_weft_probes"):
    builtins._weft_probes = {{}}
    if path := os.environ.get("{MAP}"):
        with open(path, "r+b") as file:
            builtins._weft_probes = mmap.mmap(file.fileno(), 0)
"""


# Probes


def owners(tree: ast.Module, source: bytes) -> Iterator[tuple[int, int, bool]]:
    """First and last lines of the statements that a probe can precede; whether in a function.

    Outer statements come before inner ones.
    """
    lines = source.splitlines()

    def of(node: ast.AST, inside: bool) -> Iterator[tuple[int, int, bool]]:
        if is_native(node):  # its source is lowered to machine code
            return
        if isinstance(node, ast.FunctionDef) and node.name == "__torch_function__":
            return  # PyTorch traces it, which knows no maps in shared memory
        if isinstance(node, ast.stmt):
            first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", ()))])
            text = lines[node.lineno - 1]
            alone = not text[: node.col_offset].strip() and not text.strip().startswith(b"elif")
            if alone and not isinstance(node, ast.ImportFrom):
                yield first, node.end_lineno or first, inside
        inner = inside or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for child in ast.iter_child_nodes(node):
            yield from of(child, inner)

    return of(tree, False)


def is_native(node: ast.AST) -> bool:
    """Whether a node is a function of `weft.native`, or one that Triton compiles."""
    marks = node.decorator_list if isinstance(node, ast.FunctionDef) else []
    names = [n for mark in marks for n in ast.walk(mark)]
    return any(isinstance(n, ast.Name) and n.id == "native" for n in names) or any(
        isinstance(n, ast.Attribute) and n.attr == "jit" for n in names
    )


def probed_lines(path: str, source: bytes) -> dict[int, tuple[int, bool]]:
    """By line of a change: the first line of its statement, and whether that is in a function."""
    found: dict[int, tuple[int, bool]] = {}
    if b"from __future__" not in source:  # where the map is imported
        return found
    wanted = {mutant.line for mutant in mutants(path, source)}
    for first, last, inside in owners(ast.parse(source), source):
        found |= dict.fromkeys(wanted.intersection(range(first, last + 1)), (first, inside))
    return found


def with_probes(source: bytes, numbers: dict[int, int]) -> bytes:
    """A source with a probe before some of its lines."""
    lines = source.splitlines(keepends=True)
    future = [n for n, line in enumerate(lines) if line.startswith(b"from __future__")]
    for line, number in numbers.items():
        old = lines[line - 1]
        indent = old[: len(old) - len(old.lstrip())]
        lines[line - 1] = indent + b"_weft_probes[%d] = 1\n" % number + old
    if numbers:
        lines[future[-1]] += b"import %s\n" % HEADER.encode()
    return b"".join(lines)


def probed_tree(copy: Path) -> None:
    """Write probes into a copy of the tree, and their numbers into the record."""
    record: dict[str, dict[str, object]] = {}
    count = 0
    for file in sorted((copy / "weft").rglob("*.py")):
        source, path = file.read_bytes(), file.relative_to(copy).as_posix()
        lines = sorted({first for first, _ in probed_lines(path, source).values()})
        record[path] = {"begin": count, "lines": lines}
        file.write_bytes(with_probes(source, dict(zip(lines, itertools.count(count)))))
        count += len(lines)
    (copy / f"{HEADER}.py").write_text(HEADER_TEXT)
    (RECORD / "probes.json").write_text(json.dumps(record))


# The plugin


class Recorder:
    """A pytest plugin that writes down what each test reaches."""

    def __init__(self, folder: Path, size: int) -> None:
        name = f"{os.getpid()}"
        self.cache, self.file = folder / f"cache-{name}", ""
        path = folder / f"map-{name}"
        path.write_bytes(bytes(size))
        os.environ |= {MAP: str(path), "WEFT_CACHE": str(self.cache)}
        with path.open("r+b") as opened:
            self.map = mmap.mmap(opened.fileno(), 0)
        builtins._weft_probes = self.map  # type: ignore[attr-defined]
        self.out = (folder / f"tests-{name}").open("a")

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        file = item.nodeid.partition("::")[0]
        if file != self.file:
            self.file = file
            for folder in self.cache.glob("*"):
                if folder.name != "kernel":
                    shutil.rmtree(folder, ignore_errors=True)
        self.map[:] = bytes(len(self.map))
        began = sum(os.times()[:4])  # of processes that tests start, too
        result = yield
        bits = np.packbits(np.frombuffer(self.map[:], np.uint8))
        text = base64.b64encode(zlib.compress(bits.tobytes())).decode()
        line = [item.nodeid, round(sum(os.times()[:4]) - began, 3), text]
        print(json.dumps(line), file=self.out, flush=True)
        return result


def pytest_configure(config: pytest.Config) -> None:
    """Record, in the processes that run tests."""
    folder, size = Path(os.environ["WEFT_REACH_RECORD"]), int(os.environ["WEFT_REACH_SIZE"])
    if hasattr(config, "workerinput") or not config.getoption("numprocesses", None):
        config.pluginmanager.register(Recorder(folder, size))


# The record


@dataclass(frozen=True, slots=True)
class TimedTest:
    """A test, and the processor time that it took."""

    name: str
    seconds: float


class Reach:
    """The record of a run: tests by line."""

    def __init__(self, record: Path = RECORD) -> None:
        self.folder = record
        self.probes = json.loads((record / "probes.json").read_text())
        found: dict[str, tuple[float, str]] = {}  # by test; of two records the later one
        for file in sorted(record.glob("tests-*"), key=lambda file: file.stat().st_mtime):
            for line in file.read_text().splitlines():
                name, *known = json.loads(line)
                found[name] = known
        self.tests = [TimedTest(name, seconds) for name, (seconds, _) in found.items()]
        rows = [zlib.decompress(base64.b64decode(text)) for _, text in found.values()]
        self.bits = np.frombuffer(b"".join(rows), np.uint8).reshape(len(rows), -1 if rows else 0)

    def reaching(self, path: str, line: int, source: bytes) -> list[TimedTest] | None:
        """The tests that reach a line, or its file if it runs at import or is new.

        None if there is no record of the file.
        """
        known = self.probes.get(path)
        if known is None or not known["lines"] or not self.tests:
            return None
        begin, lines = known["begin"], known["lines"]
        columns = np.arange(begin, begin + len(lines))
        old = self.recorded(path)
        first, inside = probed_lines(path, old).get(old_line(old, source, line), (0, False))
        if inside and first in lines:
            columns = np.array([begin + lines.index(first)])
        hit = (self.bits[:, columns // 8] >> (7 - columns % 8).astype(np.uint8)) & 1
        return [self.tests[n] for n in np.flatnonzero(hit.any(1))]

    def recorded(self, path: str) -> bytes:
        """The source of a file when it was recorded."""
        lines = (self.folder / "tree" / path).read_bytes().splitlines(keepends=True)
        return b"".join([line for line in lines if not line.lstrip().startswith(PROBES)])


def old_line(old: bytes, new: bytes, line: int) -> int:
    """The number that a line had before, or that of the line in its place; 0 if there is none."""
    if old == new:
        return line
    matcher = difflib.SequenceMatcher(None, old.splitlines(), new.splitlines(), autojunk=False)
    for _, begin, end, first, last in matcher.get_opcodes():
        if first < line <= last:
            return begin + line - first if begin + line - first <= end else 0
    return 0


def main() -> int:
    """Run the tests in a copy with probes, all of them or those that are named."""
    from tests.mutants import copy_tree

    copy, given = RECORD / "tree", sys.argv[1:]
    if RECORD.exists() and any(word.startswith("tests/") for word in given):
        copy_tree(ROOT, copy, "tests", "examples", "docs")
    else:
        shutil.rmtree(RECORD, ignore_errors=True)
        copy_tree(ROOT, copy)
        probed_tree(copy)
    record = json.loads((RECORD / "probes.json").read_text())
    size = max(1, sum(len(known["lines"]) for known in record.values()))
    env = os.environ | {
        "WEFT_REACH_RECORD": str(RECORD),
        "WEFT_REACH_SIZE": str(size),
        "PYTHONPATH": str(copy),
    }
    line = [sys.executable, "-P", "-m", "pytest", "-q", "-p", "tests.reach", *given]
    return subprocess.run(line, cwd=copy, env=env).returncode


if __name__ == "__main__":
    raise SystemExit(main())
