"""Mutation testing: `make mutants` changes one operator or constant of `weft/` and runs the tests.

    python tests/mutants.py [--count 100] [--seed 0] [--room optimize cost] [--jobs 2]

A mutant is one random change in a copy of the tree: `<` for `<=`, `and` for `or`, `+` for `-`,
another number. It is found if a test of its room fails, or does not end: a room's tests are the
folder of `tests/` that mirrors that of `weft/`, and what `ROOMS` adds. They run once without a
change first, which says how long they may take. Changes that no test could see are left out:
annotations, error texts, `__all__`, messages of assertions, options of dataclasses. What is
equivalent for another reason counts as a survivor, and its diff is printed for a person to judge.
The exit status is 1 if less than 95% are found.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import math
import os
import queue
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
WANTED = 0.95
# Tests of a room beside those of its mirror, tests/<room>.
ROOMS: dict[str, tuple[str, ...]] = {
    "__init__": ("tests/test_public_surface.py",),
    "__main__": ("tests/test_cli.py",),
    "array": ("tests/run", "tests/test_compile.py"),
    "cli": ("tests/test_cli.py", "tests/test_cli_run.py", "tests/optimize/test_opt_command.py"),
    "compare": ("tests/test_compare.py", "tests/test_compare_kernels.py"),
    "compiled": ("tests/test_compile.py", "tests/test_compile_calls.py"),
    "conformance": ("tests/test_conformance.py",),
    "cost": (
        "tests/explain",
        "tests/optimize/test_schedule.py",
        "tests/optimize/test_split_async.py",
    ),
    "eager": ("tests/test_compile_calls.py", "tests/test_compile_effects.py"),
    "emit": ("tests/run",),
    "errors": ("tests/test_bad_inputs.py", "tests/test_cli.py"),
    "evaluate": ("tests/test_evaluate.py", "tests/ops"),
    "ir": ("tests/test_round_trip.py", "tests/ops", "tests/optimize/test_passes.py"),
    "kernels": ("tests/tile", "tests/emit"),
    "loaded": ("tests/executable/test_saved.py",),
    "machine": ("tests/cost",),
    "mesh": ("tests/shard/test_propagate.py", "tests/partition/test_halo.py", "tests/array"),
    "ops": ("tests/partition/test_every_op.py", "tests/cost", "tests/optimize/test_passes.py"),
    "pipeline": ("tests/test_compile.py",),
    "target": ("tests/run", "tests/emit"),
    "tile": ("tests/run",),
    "traced": ("tests/test_trace.py",),
}
SWAPS: dict[type[ast.AST], tuple[str, str]] = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "+"),
    ast.Div: ("/", "*"),
    ast.FloorDiv: ("//", "*"),
    ast.Mod: ("%", "*"),
    ast.Pow: ("**", "*"),
    ast.LShift: ("<<", ">>"),
    ast.RShift: (">>", "<<"),
    ast.BitAnd: ("&", "|"),
    ast.BitOr: ("|", "&"),
    ast.BitXor: ("^", "&"),
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
    ast.And: ("and", "or"),
    ast.Or: ("or", "and"),
}


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change: the bytes of a file from `start` to `end` become `after`."""

    path: str  # below the root: weft/optimize/cse.py
    line: int
    start: int
    end: int
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}  {self.before} -> {self.after or 'nothing'}"

    def applied(self, source: bytes) -> bytes:
        """The changed source."""
        return source[: self.start] + self.after.encode() + source[self.end :]

    def diff(self, source: bytes) -> str:
        """The change as a diff."""
        old, new = source.decode().splitlines(), self.applied(source).decode().splitlines()
        lines = difflib.unified_diff(old, new, self.path, self.path, n=1, lineterm="")
        return "\n".join(f"    {line}" for line in lines)


def room_of(path: str) -> str:
    """The folder of weft/ that a file is in, or the name of the file."""
    return Path(path).parts[1].removesuffix(".py")


# Where a source can be changed


def mutants(path: str, source: bytes) -> list[Mutant]:
    """Every change of a file that tests should see."""
    return list(_Sites(path, source).of(ast.parse(source)))


class _Sites:
    """The places of one file."""

    def __init__(self, path: str, source: bytes) -> None:
        self.path, self.source = path, source
        self.starts = [0]
        for line in source.splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line))

    def of(self, node: ast.AST) -> Iterator[Mutant]:
        """The changes in a node and in all below it."""
        match node:
            case ast.BinOp(left=left, op=op, right=right):
                yield from self.swap(left, op, right)
            case ast.AugAssign(target=target, op=op, value=value):
                yield from self.swap(target, op, value)
            case ast.BoolOp(op=op, values=[first, second, *_]):
                yield from self.swap(first, op, second)
            case ast.Compare(left=left, ops=[op], comparators=[right]):
                yield from self.swap(left, op, right)
            case ast.UnaryOp(op=ast.Not() | ast.USub()):
                yield from self.without_sign(node)
            case ast.Constant(value=bool() | int() | float()):
                yield from self.constant(node)
        for child in seen_children(node):
            yield from self.of(child)

    def swap(self, left: ast.expr | ast.stmt, op: ast.AST, right: ast.expr) -> Iterator[Mutant]:
        before, after = SWAPS.get(type(op), ("", ""))
        begin, end = self.end(left), self.start(right)
        words = r"\s+".join(map(re.escape, before.split()))
        found = re.search(words.encode(), self.source[begin:end]) if before else None
        if found:
            yield self.made(begin + found.start(), begin + found.end(), after)

    def without_sign(self, node: ast.UnaryOp) -> Iterator[Mutant]:
        start = self.start(node)
        yield self.made(start, start + (3 if isinstance(node.op, ast.Not) else 1), "")

    def constant(self, node: ast.Constant) -> Iterator[Mutant]:
        value = node.value
        other = not value if isinstance(value, bool) else value + 1
        if isinstance(value, float) and abs(value) > 1:  # to which 1 is little, or nothing
            other = 0.0 if math.isinf(value) else value / 2
        yield self.made(self.start(node), self.end(node), repr(other))

    def made(self, start: int, end: int, after: str) -> Mutant:
        line = self.source.count(b"\n", 0, start) + 1
        return Mutant(self.path, line, start, end, self.source[start:end].decode(), after)

    def start(self, node: ast.AST) -> int:
        return self.starts[node.lineno - 1] + node.col_offset  # type: ignore[attr-defined]

    def end(self, node: ast.AST) -> int:
        return self.starts[node.end_lineno - 1] + node.end_col_offset  # type: ignore[attr-defined]


def seen_children(node: ast.AST) -> list[ast.AST]:
    """The parts of a node whose changes a test can see."""
    match node:
        case ast.JoinedStr() | ast.Raise():  # texts; their positions are unknown, too
            return []
        case ast.Assert(test=test):
            return [test]
        case ast.AnnAssign(annotation=annotation, value=value):
            is_alias = isinstance(annotation, ast.Name) and annotation.id == "TypeAlias"
            return [] if value is None or is_alias else [value]
        case ast.Assign(targets=[ast.Name(id=name)], value=value):
            return [] if name == "__all__" or _is_union(value) else [value]
        case ast.If(test=ast.Name(id="TYPE_CHECKING"), orelse=orelse):
            return [*orelse]
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            return [*node.args.defaults, *filter(None, node.args.kw_defaults), *node.body]
        case ast.ClassDef():
            return [*node.body]
        case ast.Call(func=ast.Name(id="isinstance"), args=[value, _]):
            return [value]
        case ast.Call():  # zip(strict=True) is an assertion
            named = [k.value for k in node.keywords if k.arg != "strict"]
            return [node.func, *node.args, *named]
    return list(ast.iter_child_nodes(node))


def _is_union(node: ast.expr) -> bool:
    """Whether an expression is types with `|` between them, as far as can be seen."""
    if isinstance(node, ast.BinOp):
        return isinstance(node.op, ast.BitOr) and _is_union(node.left) and _is_union(node.right)
    return isinstance(node, ast.Name | ast.Attribute | ast.Subscript) or (
        isinstance(node, ast.Constant) and node.value is None
    )


def drawn(root: Path, rooms: Sequence[str], count: int, seed: int) -> list[Mutant]:
    """So many changes, each as likely as any other, of rooms or of single files."""
    listed = []
    for path in sorted((root / "weft").rglob("*.py")):
        name = path.relative_to(root).as_posix()
        if not rooms or room_of(name) in rooms or name in rooms:
            listed += mutants(name, path.read_bytes())
    return random.Random(seed).sample(listed, min(count, len(listed)))


# The tests of a room


def room_tests(root: Path, path: str) -> list[str]:
    """The test files of a room: first those that are most likely to see a change of this file."""
    room = room_of(path)
    stem = Path(path).stem if Path(path).stem != "__init__" else Path(path).parent.name
    places = [f"tests/{room}", f"tests/test_{room}.py", *ROOMS.get(room, ())]
    files: dict[str, Path] = {}
    for place in places:
        whole = root / place
        found = sorted(whole.rglob("test_*.py")) if whole.is_dir() else [whole]
        files |= {f.relative_to(root).as_posix(): f for f in found if f.exists()}
    order = list(files)

    def likely(name: str) -> tuple[bool, bool, bool, int]:
        is_extra = not name.startswith(places[0])
        mentions = stem in files[name].read_text()
        return Path(name).stem != f"test_{stem}", not mentions, is_extra, order.index(name)

    return sorted(files, key=likely)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a run of tests."""

    failed: str  # the first test that failed; empty if none did
    seconds: float


class Workshop:
    """Copies of the tree in which tests run."""

    def __init__(self, root: Path, folder: Path, jobs: int) -> None:
        self.root, self.folder = root, folder
        self.copies: queue.Queue[Path] = queue.Queue()
        self.kernels = folder / "kernels"  # machine code that is known by its own text
        for n in range(jobs):
            copy = folder / f"tree{n}"
            for name in _files(root):
                target = copy / name
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(root / name, target)
            self.copies.put(copy)

    def tried(self, mutant: Mutant, limit: float) -> Outcome:
        """The outcome of a room's tests with a change."""
        copy = self.copies.get()
        path = copy / mutant.path
        source = path.read_bytes()
        path.write_bytes(mutant.applied(source))
        try:
            return self.run(copy, room_tests(copy, mutant.path), limit, is_changed=True)
        finally:
            path.write_bytes(source)
            self.copies.put(copy)

    def unchanged(self, room: str) -> Outcome:
        """The outcome of a room's tests as they are."""
        copy = self.copies.get()
        try:
            return self.run(copy, room_tests(copy, f"weft/{room}/__init__.py"), 3600.0)
        finally:
            self.copies.put(copy)

    def run(
        self, copy: Path, tests: Sequence[str], limit: float, *, is_changed: bool = False
    ) -> Outcome:
        """Run tests until one fails; a changed tree must not see or leave what others remember."""
        cache = copy.with_name(f"{copy.name}-cache")
        env = os.environ | {"PYTHONPATH": str(copy), "WEFT_CACHE": str(cache)}
        env |= {"PYTHONDONTWRITEBYTECODE": "1"}
        line = [sys.executable, "-m", "pytest", "-x", "-q", "--tb=no", "-p", "no:cacheprovider"]
        began = time.perf_counter()
        if self.kernels.exists():
            shutil.copytree(self.kernels, cache / "kernel", copy_function=os.link)
        failed = _first_failure([*line, *tests], copy, env, limit)
        if not is_changed and (cache / "kernel").exists() and not self.kernels.exists():
            (cache / "kernel").rename(self.kernels)
        shutil.rmtree(cache, ignore_errors=True)
        return Outcome(failed, time.perf_counter() - began)


def _files(root: Path) -> list[str]:
    """What belongs to the tree: all that git knows or would add."""
    line = ["git", "ls-files", "-co", "--exclude-standard"]
    listed = subprocess.run(line, cwd=root, capture_output=True, text=True, check=True).stdout
    return [name for name in listed.splitlines() if (root / name).is_file()]


def _first_failure(line: Sequence[str], folder: Path, env: dict[str, str], limit: float) -> str:
    """The first test that fails, or that time is up; empty if all pass."""
    with subprocess.Popen(
        line, cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        start_new_session=True,
    ) as process:  # fmt: skip
        try:
            output, _ = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # tests start processes, too
            return f"did not end in {limit:.0f} s"
    if process.returncode == 0:
        return ""
    found = re.search(r"^(?:FAILED|ERROR) (\S+)", output, re.M)
    return found[1] if found else "pytest could not start"


# The command


def main(given: Sequence[str] | None = None, root: Path = ROOT) -> int:
    """Draw mutants, try each, and print what came of it."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--count", type=int, default=100)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--room", nargs="+", default=[], help="folders of weft/, or files")
    options.add_argument("--jobs", type=int, default=2, help="how many are tried at once")
    options.add_argument("--list", action="store_true", help="only print them")
    chosen = options.parse_args(given)
    listed = drawn(root, chosen.room, chosen.count, chosen.seed)
    if not listed:
        options.error(f"nothing to change in {', '.join(chosen.room)}")
    if chosen.list:
        print(*listed, sep="\n")
        return 0
    with tempfile.TemporaryDirectory() as folder:
        survivors = tried(Workshop(root, Path(folder), chosen.jobs), listed, chosen.jobs)
    found = len(listed) - len(survivors)
    print(f"{found} of {len(listed)} found ({100 * found / len(listed):.0f}%), seed {chosen.seed}")
    return 0 if found >= WANTED * len(listed) else 1


def tried(shop: Workshop, listed: Sequence[Mutant], jobs: int) -> list[Mutant]:
    """The mutants that no test sees."""
    survivors: list[Mutant] = []
    printing = threading.Lock()
    with ThreadPoolExecutor(jobs) as pool:
        rooms = sorted({room_of(mutant.path) for mutant in listed})
        limits = dict(zip(rooms, pool.map(lambda room: _limit(shop, room), rooms), strict=True))

        def one(mutant: Mutant) -> None:
            outcome = shop.tried(mutant, limits[room_of(mutant.path)])
            with printing:
                word = "found   " if outcome.failed else "SURVIVED"
                print(f"{word} {mutant}  {outcome.failed}  {outcome.seconds:.0f} s", flush=True)
                if not outcome.failed:
                    survivors.append(mutant)
                    print(mutant.diff((shop.root / mutant.path).read_bytes()), flush=True)

        list(pool.map(one, listed))
    return survivors


def _limit(shop: Workshop, room: str) -> float:
    """How many seconds a room's tests may take; they have to pass before anything is changed."""
    outcome = shop.unchanged(room)
    if outcome.failed:
        raise SystemExit(f"the tests of {room} fail without a change: {outcome.failed}")
    print(f"room {room}: {outcome.seconds:.0f} s", flush=True)
    return 60 + 3 * outcome.seconds


if __name__ == "__main__":
    sys.exit(main())
