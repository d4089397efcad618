"""Conformance cases: programs that check their own results, run in subprocesses."""

from __future__ import annotations

import fnmatch
import json
import os
import queue
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import replace
from pathlib import Path
from typing import Literal

from weft.array.stacked import one_for_all
from weft.capture import parse
from weft.errors import Unsupported, WeftError
from weft.evaluate import evaluate
from weft.ir.module import Function, Module, Node, Region, Value
from weft.ir.rebuild import rewrite
from weft.ir.types import Array
from weft.ops.shape import Constant
from weft.optimize.inline_calls import inline_calls
from weft.pipeline import local_program
from weft.records import dataclass
from weft.run.parts import parts_of
from weft.targets import target_named

Status = Literal["pass", "fail", "refused"]
CheckedTarget = Literal["reference", "llvm"]
TARGETS: tuple[CheckedTarget, ...] = ("reference", "llvm")
NUMPY = "by numpy: "  # prefix of the list of ops without a kernel, of a passing case

_SEPARATOR = re.compile(r"^// -----.*$", re.M)
_DISABLED = re.compile(r"^//\s*RUN-DISABLED(?:\(([^)\n]*)\))?", re.M)
_CODE = re.compile(r"^(?!\s*//)\s*\S", re.M)
_DTYPE = re.compile(r"_(?:bfloat|float|u?int|complex|bool)\d*(?=_|$)")
_BYTECODE = b"ML\xefR"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of one file, and the reason if it did not pass."""

    file: str
    status: Status
    detail: str = ""

    @property
    def op(self) -> str:
        """The op under test: the file name up to the first element type, as `scatter_add`."""
        stem = Path(self.file).name.removesuffix(".mlir")
        match = _DTYPE.search(stem)
        return (stem[: match.start()] if match else stem).rstrip("_")


def find_cases(root: Path, only: str | None = None) -> list[Path]:
    """The `.mlir` files under a folder (or the one file given) whose names match `only`."""
    if not root.exists():
        raise WeftError(f"{root} does not exist", help="give a folder of .mlir files, or one file")
    files = sorted(root.rglob("*.mlir")) if root.is_dir() else [root]
    if only is not None:
        pattern = only if re.search(r"[*?\[]", only) else f"*{only}*"
        files = [f for f in files if fnmatch.fnmatch(f.name, pattern)]
    if not files:
        wanted = f" that match {only!r}" if only is not None else ""
        raise WeftError(
            f"{root} holds no .mlir files{wanted}", help="give another folder or pattern"
        )
    return files


def run_file(path: Path, name: str | None = None, target: CheckedTarget = "reference") -> Outcome:
    """Run every section of one file in this process, in numpy or by kernels of a target."""
    name = name or path.name
    try:
        sections = _sections(path)
    except OSError as error:
        return Outcome(name, "fail", f"cannot be read: {error.strerror or error}")
    if isinstance(sections, str):
        return Outcome(name, "refused", sections)
    refused, by_numpy = "", dict[str, None]()
    for section in sections:
        try:
            by_numpy |= dict.fromkeys(_run_section(section, target))
        except Unsupported as error:
            refused = refused or _one_line(error)
        except WeftError as error:
            return Outcome(name, "fail", _one_line(error))
        except Exception as error:  # noqa: BLE001  # one file's bug must not hide the others' results
            return Outcome(name, "fail", f"bug in weft: {type(error).__name__}: {error}")
    if refused:
        return Outcome(name, "refused", refused)
    return Outcome(name, "pass", f"{NUMPY}{', '.join(by_numpy)}" if by_numpy else "")


def _sections(path: Path) -> Sequence[str | bytes | Path] | str:
    """The sections of a file to parse, or the reason to skip it."""
    raw = path.read_bytes()
    if raw.startswith(_BYTECODE):
        return [path]
    text = raw.decode("utf-8", "surrogateescape")
    code = _CODE.search(text)
    if disabled := _DISABLED.search(text, 0, code.start() if code else len(text)):
        return f"disabled upstream ({disabled[1] or 'no reason given'})"
    separators = list(_SEPARATOR.finditer(text))
    if not separators:
        return [path]
    starts = [0, *(s.end() for s in separators)]
    ends = [*(s.start() for s in separators), len(text)]
    # Empty lines in place of earlier sections keep line numbers right.
    return [
        "\n" * text.count("\n", 0, start) + text[start:end] + "\n"
        for start, end in zip(starts, ends, strict=True)
        if _CODE.search(text[start:end])
    ]


def _run_section(section: str | bytes | Path, target: CheckedTarget) -> list[str]:
    """Run a section; returns the ops that the target leaves to numpy."""
    module = parse(section)
    left: list[str] = []
    for function in _entries(module):
        if target == "reference":
            evaluate(module, func=function.name)
        else:
            left += _run_kernels(module, function.name)
    return left


def _run_kernels(module: Module, name: str) -> list[str]:
    """Run a function by kernels; constants become arguments, so that nothing is folded."""
    unfolded, given = _constants_as_arguments(inline_calls(module), name)
    program = local_program(unfolded, name, target=target_named("llvm"))
    program(*[one_for_all(array, program.sub_axes) for array in given])
    left = [part.node.op for part in parts_of(program) if part.group is None]
    return [op.name.rpartition(".")[2] for op in left if op.pure]  # checks are not


def _constants_as_arguments(module: Module, name: str) -> tuple[Module, list[Array]]:
    """The module with the constants of a function as its arguments, and their values."""
    own = {n for n in module.function(name).body.nodes if isinstance(n.op, Constant)}
    args: list[Value] = []
    arrays: list[Array] = []

    def hoist(node: Node) -> tuple[Value, ...] | None:
        if node not in own:
            return None
        args.append(Value(node.types[0]))
        arrays.append(node.op.reference())
        return (args[-1],)

    result = rewrite(module, hoist, kinds=(Constant,))
    function = result.function(name)
    old = function.body
    body = Region((*old.args, *args), old.nodes, old.results, old.loc)
    return result.with_functions({**result.functions, name: replace(function, body=body)}), arrays


def _entries(module: Module) -> list[Function]:
    """The entry functions of a case: main, or the only one, or all without arguments."""
    functions = list(module.functions.values())
    if "main" in module.functions:
        functions = [module.functions["main"]]
    elif len(functions) > 1:
        functions = [f for f in functions if not f.body.args]
    if not functions:
        raise Unsupported("no function can be run alone", help="add a main that takes no arguments")
    for function in functions:
        if function.body.args:
            raise Unsupported(
                f"@{function.name} takes {len(function.body.args)} arguments, "
                "but a conformance case has none",
                help="call it from a main that takes no arguments",
                loc=function.loc,
            )
    return functions


def _one_line(error: WeftError) -> str:
    frames = error.loc.frames if error.loc is not None else ()
    line = f" (line {frames[0][1]})" if frames else ""
    return " ".join(error.message.split()) + line


class Worker:
    """A subprocess that runs one file at a time; restarted after a crash."""

    def __init__(self, timeout: float, target: CheckedTarget = "reference") -> None:
        self._timeout = timeout
        self._target = target
        self._process: subprocess.Popen[bytes] | None = None
        self._stopped = False

    def run(self, path: Path, name: str) -> Outcome:
        """The outcome of a file, also if the subprocess dies."""
        if self._stopped:
            return Outcome(name, "fail", "not run")
        process = self._running()
        started = time.monotonic()
        timer = threading.Timer(self._timeout, process.kill)
        timer.start()
        line = _ask(process, path, self._target)
        timer.cancel()
        if line.endswith(b"\n"):
            status, detail = json.loads(line)
            return Outcome(name, status, detail)
        code = process.wait()
        self.close()
        if time.monotonic() - started >= self._timeout:
            return Outcome(name, "fail", f"no result after {self._timeout:g} seconds")
        return Outcome(name, "fail", f"the process that ran it died ({_ending(code)})")

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            package = str(Path(__file__).parent.parent)
            inherited = os.environ.get("PYTHONPATH")
            search = package if not inherited else package + os.pathsep + inherited
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "weft.compare.conformance"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=os.environ | {"PYTHONPATH": search},
                start_new_session=True,  # only the parent handles an interrupt, and ends the child
            )
        return self._process

    def stop(self) -> None:
        """Kill the process, also in the middle of a file, and accept no more."""
        self._stopped = True
        if self._process is not None:
            self._process.kill()

    def close(self) -> None:
        """End the process and close its pipes; no call may be pending."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()


def _ask(process: subprocess.Popen[bytes], path: Path, target: CheckedTarget) -> bytes:
    assert process.stdin and process.stdout
    try:
        process.stdin.write(json.dumps([str(path), target]).encode() + b"\n")
        process.stdin.flush()
        return process.stdout.readline()
    except BrokenPipeError:
        return b""


def _ending(code: int) -> str:
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"


def run_files(
    files: Sequence[Path],
    root: Path,
    *,
    jobs: int = 2,
    timeout: float = 300.0,
    target: CheckedTarget = "reference",
) -> Iterator[Outcome]:
    """Run files in several processes at once; yields outcomes in order of completion."""
    workers = [Worker(timeout, target) for _ in range(min(jobs, len(files)))]
    idle: queue.SimpleQueue[Worker] = queue.SimpleQueue()
    for worker in workers:
        idle.put(worker)

    def run_one(path: Path) -> Outcome:
        worker = idle.get()
        name = path.relative_to(root).as_posix() if root.is_dir() else path.name
        try:
            return worker.run(path, name)
        finally:
            idle.put(worker)

    with ThreadPoolExecutor(len(workers)) as pool:
        futures = [pool.submit(run_one, path) for path in files]
        try:
            for future in as_completed(futures):
                yield future.result()
        finally:
            for worker in workers:
                worker.stop()
            pool.shutdown(cancel_futures=True)
            for worker in workers:
                worker.close()


def _serve() -> None:
    """Answer every path and target on standard input with the outcome of that file."""
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as answers:
        os.dup2(2, 1)  # a program's output must not mix with the answers
        for line in sys.stdin:
            path, target = json.loads(line)
            outcome = run_file(Path(path), target=target)
            print(json.dumps([outcome.status, outcome.detail]), file=answers, flush=True)


if __name__ == "__main__":
    _serve()
