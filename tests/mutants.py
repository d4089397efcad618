"""Mutation testing: `make mutants` changes one operator or constant of `weft/` and runs the tests.

    python tests/mutants.py [--count 100] [--seed 0] [--room optimize cost] [--jobs 2]
    python tests/mutants.py --room weft/optimize/cse.py:40  # one survivor again
    python tests/mutants.py --files 3                       # a first look, by the likeliest files
    python tests/mutants.py --seconds 600                   # after `make reach`: a later end

A mutant is one random change in a copy of the tree: `<` for `<=`, `and` for `or`, `+` for `-`,
another number. It is found if a test of its room fails, or does not end: a room's tests are the
folder of `tests/` that mirrors that of `weft/`, what `ROOMS` adds, and files that name the changed
module, from the likeliest one on; or, after `make reach`, all tests that reach the changed line.
Those of a line that half of the tests reach end after so many seconds of them, and a survivor says
how many of how many it met. The test that fails has to pass without the change. Changes that no
test could see are left out: annotations, error texts, `__all__`, messages of assertions, options of
dataclasses. One after which the bytecode is the same is not tried, but listed and counted. What is
equivalent for another reason counts as a survivor, and its diff is printed for a person to judge.
The exit status is 1 if less than 95% are found.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import itertools
import marshal
import multiprocessing
import os
import random
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import NoReturn

import pytest

from tests.changes import Mutant, mutants
from tests.reach import RECORD, Reach, TimedTest

ROOT = Path(__file__).resolve().parents[1]
WANTED = 0.95
BATCHES = (12, 100)  # reaching tests that are tried before others are collected; the rest together
PATIENCE = 150.0  # seconds after which a test counts as one that does not end
# Tests of a room beside those of its mirror, tests/<room>.
ROOMS: dict[str, tuple[str, ...]] = {
    "__init__": ("tests/test_public_surface.py",),
    "__main__": ("tests/cli/test_cli.py",),
    "array": ("tests/run", "tests/test_compile.py"),
    "cli": (
        "tests/cli/test_cli.py",
        "tests/cli/test_cli_run.py",
        "tests/optimize/test_opt_command.py",
    ),
    "compare": (
        "tests/test_compare.py",
        "tests/test_compare_kernels.py",
        "tests/test_conformance.py",
    ),
    "compiled": ("tests/test_compile.py", "tests/test_compile_calls.py"),
    "ready": ("tests/test_compile.py", "tests/test_compile_calls.py"),
    "cost": (
        "tests/explain",
        "tests/optimize/scheduling/test_schedule.py",
        "tests/optimize/scheduling/test_split_async.py",
    ),
    "eager": ("tests/test_compile_calls.py", "tests/test_compile_effects.py"),
    "emit": ("tests/run",),
    "errors": ("tests/test_bad_inputs.py", "tests/cli/test_cli.py"),
    "evaluate": ("tests/test_evaluate.py", "tests/ops"),
    "forks": ("tests/jax/test_no_abort.py",),
    "ir": ("tests/test_round_trip.py", "tests/ops", "tests/optimize/test_passes.py"),
    "kernels": ("tests/tile", "tests/emit"),
    "loaded": ("tests/executable/test_saved.py",),
    "machine": ("tests/cost",),
    "mesh": (
        "tests/shard/test_propagate.py",
        "tests/partition/partitioners/test_halo.py",
        "tests/array",
    ),
    "native": ("tests/emit/llvm/test_pool_functions.py", "tests/jax/native/test_native_slots.py"),
    "ops": ("tests/partition/test_every_op.py", "tests/cost", "tests/optimize/test_passes.py"),
    "optimize": ("tests/test_stage_sizes.py",),
    "partition": ("tests/test_stage_sizes.py",),
    "pipeline": ("tests/test_compile.py",),
    "planner": ("tests/plan",),
    "predict": ("tests/simulate", "tests/cost"),
    "reporting": ("tests/report",),
    "shard": ("tests/test_stage_sizes.py",),
    "target": ("tests/run", "tests/emit"),
    "tile": ("tests/test_stage_sizes.py", "tests/run"),
    "traced": ("tests/test_trace.py",),
    "training": ("tests/capture/torch/test_training.py",),
    "dynamo": ("tests/capture/torch/test_dynamo.py",),
    "varying": ("tests/test_stage_sizes.py",),
}


def room_of(path: str) -> str:
    """The folder of weft/ that a file is in, or the name of the file."""
    return Path(path).parts[1].removesuffix(".py")


def drawn(root: Path, rooms: Sequence[str], count: int, seed: int) -> list[Mutant]:
    """So many changes, each as likely as any other, of rooms, of files or of lines."""
    listed = []
    for path in sorted((root / "weft").rglob("*.py")):
        name = path.relative_to(root).as_posix()
        if not rooms or any(r in (room_of(name), name) or r.startswith(f"{name}:") for r in rooms):
            found = mutants(name, path.read_bytes())
            whole = not rooms or not {room_of(name), name}.isdisjoint(rooms)
            listed += [m for m in found if whole or f"{name}:{m.line}" in rooms]
    return random.Random(seed).sample(listed, min(count, len(listed)))


# The tests of a room


def room_tests(root: Path, path: str) -> list[str]:
    """The test files of a room: first those that are most likely to see a change of this file."""
    room, module = room_of(path), path.removesuffix(".py").removesuffix("/__init__")
    name, folder = Path(module).name, Path(path).parent.name
    dotted = module.replace("/", ".")
    places = [f"tests/{room}", f"tests/test_{room}.py", *ROOMS.get(room, ())]
    files: dict[str, str] = {}
    for place in places:
        whole = root / place
        found = sorted(whole.rglob("test_*.py")) if whole.is_dir() else [whole]
        files |= {f.relative_to(root).as_posix(): f.read_text() for f in found if f.exists()}
    for elsewhere in sorted((root / "tests").rglob("test_*.py")):
        if dotted in (text := elsewhere.read_text()):
            files.setdefault(elsewhere.relative_to(root).as_posix(), text)
    order = list(files)

    def unlikely(file: str) -> tuple[bool, bool, int, bool, bool, int]:
        stem, text = Path(file).stem, files[file]
        return (
            stem != f"test_{name}",
            dotted not in text,
            -shared_folders(path, file),
            not stem.startswith(f"test_{folder}") and name not in text,
            not file.startswith(places[0]),
            order.index(file),
        )

    return sorted(files, key=unlikely)


def shared_folders(path: str, test: str) -> int:
    """How many folders below their roots a file of weft/ and one of tests/ have in common."""
    pairs = zip(Path(path).parent.parts[1:], Path(test).parent.parts[1:], strict=False)
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))


def in_turn(tests: Sequence[TimedTest], files: Sequence[str], seconds: float) -> list[str]:
    """The names of tests that took so many seconds together: one of each function, then another.

    The functions of some files come first; then the quick ones.
    """
    functions: dict[str, list[TimedTest]] = {}
    for test in sorted(tests, key=lambda test: test.seconds):
        functions.setdefault(test.name.partition("[")[0], []).append(test)
    rank = {file: n for n, file in enumerate(files)}

    def unlikely(function: str) -> tuple[int, float]:
        file = function.partition("::")[0]
        return rank.get(file, len(rank)), functions[function][0].seconds

    order = sorted(functions, key=unlikely)
    rounds = itertools.zip_longest(*(functions[f] for f in order))
    listed = [test for turn in rounds for test in turn if test]
    spent = itertools.accumulate(test.seconds for test in listed)
    within = sum(used <= seconds for used in spent)
    return [test.name for test in listed[: max(1, within)]]


class Watch:
    """A pytest plugin that writes to a pipe which test runs, and which fails."""

    def __init__(self, pipe: int) -> None:
        self.pipe = pipe

    def write(self, word: str, name: str) -> None:
        os.write(self.pipe, f"{word} {name}\n".encode())

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.write("begin", nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.write("failed", report.nodeid)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.write("failed", report.nodeid)


class Workshop:
    """A copy of the tree in which tests run, each file in a fork of this process.

    The fork has what tests import from elsewhere, and nothing of weft; bytecode is kept. So a file
    starts in the time that weft takes to import.
    """

    def __init__(self, root: Path, folder: Path, files: int | None, seconds: float) -> None:
        self.root, self.files, self.seconds = root, files, seconds
        self.reach = Reach() if RECORD.exists() else None
        self.copy = Path(tempfile.mkdtemp(prefix="tree", dir=folder))
        self.cache = Path(tempfile.mkdtemp(prefix="cache", dir=folder))
        self.kernels = self.cache.with_suffix(".kernels")  # machine code, known by its own text
        self.trials = 0
        self.texts: dict[str, str] = {}  # of files of tests
        self.fine: set[str] = set()  # tests that pass without a change
        copy_tree(root, self.copy)

    def tried(self, mutant: Mutant) -> Outcome:
        """What the tests of a room say to a change."""
        began = time.perf_counter()
        source = (self.copy / mutant.path).read_bytes()
        if same_code(source, mutant.applied(source)):
            return Outcome(mutant, "", "the same bytecode", 0.0)
        failed = ""
        batches, met = self.batches(mutant)
        for tests in batches:
            failed = self.witness(mutant, tests)
            if failed:
                break
        return Outcome(mutant, failed, met, time.perf_counter() - began)

    def batches(self, mutant: Mutant) -> tuple[list[list[str]], str]:
        """The tests for a change, those of one process together, and what they are in words.

        If it is recorded which tests reach the line, those: from each function of a test one, then
        from each another one, the likeliest files first. Otherwise files.
        """
        files = room_tests(self.copy, mutant.path)
        source = (self.copy / mutant.path).read_bytes()
        reaching = self.reach.reaching(mutant.path, mutant.line, source) if self.reach else None
        if reaching is None:
            chosen = files[: self.files]
            return [[file] for file in chosen], f"{len(chosen)} of {len(files)} files"
        reaching = [test for test in reaching if self.exists(test.name)]
        if not reaching:
            return [], "no test reaches it"
        names = in_turn(reaching, files, self.seconds)
        ends = (0, *BATCHES, len(names))
        batches = [names[begin:end] for begin, end in itertools.pairwise(ends)]
        met = f"{len(names)} of {len(reaching)} tests that reach it"
        return [batch for batch in batches if batch], met

    def exists(self, name: str) -> bool:
        """Whether a recorded test is still there."""
        file, _, function = name.partition("[")[0].partition("::")
        if file not in self.texts:
            path = self.copy / file
            self.texts[file] = path.read_text() if path.exists() else ""
        return f"def {function}(" in self.texts[file]

    def witness(self, mutant: Mutant, tests: list[str]) -> str:
        """The first of some tests that fails with a change and passes without it."""
        while tests:
            failed = self.changed(mutant, tests)
            if not failed or self.passes(failed):
                return failed
            if failed not in tests:
                return ""
            tests = [test for test in tests if test != failed]
        return ""

    def changed(self, mutant: Mutant, tests: list[str]) -> str:
        """The first failure of tests with a change."""
        path = self.copy / mutant.path
        source, status = path.read_bytes(), path.stat()
        self.trials += 1
        path.write_bytes(mutant.applied(source))
        os.utime(path, (self.trials, self.trials))  # bytecode goes by it: a time of its own
        try:
            leaves = not mutant.path.startswith(("weft/cache/", "weft/emit/llvm/jit/"))
            return self.run(tests, leaves=leaves)
        finally:
            path.write_bytes(source)
            os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))

    def passes(self, test: str) -> bool:
        """Whether a test passes without a change; what does not is no witness."""
        whole = "::" not in test and self.reach  # a file that could not be collected
        line = ["--collect-only", test] if whole else [test]
        if test not in self.fine and self.run(line, leaves=True):
            print(f"{test} fails without a change", flush=True)
            return False
        self.fine.add(test)
        return True

    def run(self, tests: list[str], *, leaves: bool) -> str:
        """The first failure of tests; nothing is remembered from run to run but kernels."""
        shutil.rmtree(self.cache, ignore_errors=True)
        if self.kernels.exists():
            shutil.copytree(self.kernels, self.cache / "kernel", copy_function=os.link)
        reading, writing = os.pipe()
        pid = os.fork()
        if not pid:
            os.close(reading)
            _be_pytest(self.copy, tests, self.cache, writing)
        os.close(writing)
        with os.fdopen(reading, "rb", buffering=0) as pipe:
            failed = _watched(pipe, tests[-1])
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)  # tests start processes, too
        os.waitpid(pid, 0)
        if leaves and (self.cache / "kernel").exists():
            shutil.rmtree(self.kernels, ignore_errors=True)
            (self.cache / "kernel").rename(self.kernels)
        return failed


def _watched(pipe: io.FileIO, name: str) -> str:
    """The test that fails, kills its process or does not end, of those that write to a pipe."""
    began, rest = time.perf_counter(), b""
    while True:
        left = PATIENCE - (time.perf_counter() - began)
        if not select.select([pipe], [], [], max(0.0, left))[0]:
            return name
        text = pipe.read(65536)
        if not text:
            return name
        *lines, rest = (rest + text).split(b"\n")
        for line in lines:
            word, _, name = line.decode().partition(" ")
            began = time.perf_counter()
            if word != "begin":
                return name if word == "failed" else ""


def _be_pytest(copy: Path, tests: list[str], cache: Path, pipe: int) -> NoReturn:
    """Run tests in this process, and end it."""
    os.setsid()
    os.chdir(copy)
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(nothing, stream)
    sys.path.insert(0, str(copy))
    for name in [name for name in sys.modules if name.partition(".")[0] == "tests"]:
        del sys.modules[name]  # those of the copy are others
    os.environ |= {"PYTHONPATH": str(copy), "WEFT_CACHE": str(cache)}
    watch = Watch(pipe)
    try:
        line = ["-x", "-q", "--tb=no", "-p", "no:cacheprovider", *tests]
        status = pytest.main(line, plugins=[watch])
        is_fine = status in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)
        watch.write("passed" if is_fine else "failed", tests[-1])
    finally:
        os._exit(0)


def same_code(one: bytes, other: bytes) -> bool:
    """Whether two sources that differ within lines are the same to the interpreter."""

    def code(source: bytes) -> bytes:
        compiled = compile(source, "x", "exec", dont_inherit=True)
        return marshal.dumps(_without_columns(compiled), 2)  # 2: without references

    return code(one) == code(other)


def _without_columns(code: CodeType) -> CodeType:
    """Bytecode that does not say in which columns of the source it stands."""
    parts = (_without_columns(c) if isinstance(c, CodeType) else c for c in code.co_consts)
    return code.replace(co_consts=tuple(parts), co_linetable=b"")


def copy_tree(root: Path, copy: Path, *folders: str) -> None:
    """Copy the files of a tree, or of some of its folders."""
    for name in _files(root, folders):
        target = copy / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(root / name, target)


def _files(root: Path, folders: Sequence[str]) -> list[str]:
    """What belongs to the tree: all that git knows or would add."""
    line = ["git", "ls-files", "-co", "--exclude-standard", "--", *folders]
    listed = subprocess.run(line, cwd=root, capture_output=True, text=True, check=True).stdout
    return [name for name in listed.splitlines() if (root / name).is_file()]


# The command


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a mutant."""

    mutant: Mutant
    failed: str  # the first test that failed; empty if none did
    met: str  # the tests that it was tried with, or why with none
    seconds: float


def main(given: Sequence[str] | None = None) -> int:
    """Draw mutants, try each, and print what came of it."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--count", type=int, default=100)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument(
        "--room", nargs="+", default=[], help="folders of weft/, files or file:line"
    )
    options.add_argument("--jobs", type=int, default=2, help="how many are tried at once")
    options.add_argument("--files", type=int, help="try the likeliest files of tests alone")
    options.add_argument(
        "--seconds", type=float, default=240.0, help="end after reaching tests that took so long"
    )
    options.add_argument("--root", type=Path, default=ROOT, help="the tree to change copies of")
    options.add_argument("--list", action="store_true", help="only print them")
    chosen = options.parse_args(given)
    listed = drawn(chosen.root, chosen.room, chosen.count, chosen.seed)
    if not listed:
        options.error(f"nothing to change in {', '.join(chosen.room)}")
    if chosen.list:
        print(*listed, sep="\n")
        return 0
    found = tried(chosen.root, listed, chosen.jobs, chosen.files, chosen.seconds)
    print(f"{found} of {len(listed)} found ({100 * found / len(listed):.0f}%), seed {chosen.seed}")
    return 0 if found >= WANTED * len(listed) else 1


def tried(
    root: Path, listed: Sequence[Mutant], jobs: int, files: int | None, seconds: float
) -> int:
    """How many mutants the tests find; what comes of each is printed."""
    os.environ["JAX_PLATFORMS"] = "cpu"  # as tests/programs.py, which has to be first
    for name in ("hypothesis", "llvmlite.binding", "numpy", "scipy", "torch", "jax"):
        with contextlib.suppress(ImportError):  # some are extras
            importlib.import_module(name)
    found = 0
    with (
        tempfile.TemporaryDirectory() as folder,
        multiprocessing.get_context("fork").Pool(
            jobs, _open, (root, Path(folder), files, seconds)
        ) as pool,
    ):
        for outcome in pool.imap_unordered(_try, listed):
            found += bool(outcome.failed)
            word = "found   " if outcome.failed else "SURVIVED"
            what = outcome.failed or outcome.met
            print(f"{word} {outcome.mutant}  {what}  {outcome.seconds:.0f} s", flush=True)
            if not outcome.failed:
                print(outcome.mutant.diff((root / outcome.mutant.path).read_bytes()), flush=True)
    return found


def _open(root: Path, folder: Path, files: int | None, seconds: float) -> None:
    """Open the workshop of a process of the pool."""
    global SHOP
    SHOP = Workshop(root, folder, files, seconds)


def _try(mutant: Mutant) -> Outcome:
    return SHOP.tried(mutant)


if __name__ == "__main__":
    if not sys.flags.safe_path:  # tests/array and tests/jax would hide what they test
        os.execv(sys.executable, [sys.executable, "-P", *sys.argv])
    sys.exit(main())
