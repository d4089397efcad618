"""JAX's own tests, from a checkout of jax-ml/jax, on Weft's devices and on JAX's CPU as the oracle.

Every file runs in a process of its own. Results are kept by file as JSON lines, so that a run that
was stopped goes on where it was; a crash or a test that takes too long is a result like any other,
and the rest of its file runs in a new process. The oracle runs only what did not pass on Weft.

    python tests/upstream/run.py DIR                       all files but those of files.toml
    python tests/upstream/run.py DIR pjit_test array_test  these files
    python tests/upstream/run.py DIR --cases 3 --jobs 4    a smaller sample, four files at a time
    python tests/upstream/run.py DIR --sample 50           fifty random tests of each file
    python tests/upstream/run.py DIR --again failed        failures once more, the rest as recorded
    python tests/upstream/run.py DIR --report              the table of what is recorded
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(HERE)]  # pytest's plugin lies here, too: no package of that name is needed

from report import print_report  # noqa: E402
from results import Results, read_toml  # noqa: E402

DEVICES = 8
POLL = 0.2  # seconds between two looks at a process


@dataclass(frozen=True)
class Settings:
    """Where tests and results are, how many cases are generated, and how long tests may take."""

    checkout: Path
    results: Path
    cases: int = 5
    x64: bool = False
    seconds_a_test: float = 180
    seconds_a_file: float = 3600
    again: str = ""  # what is run once more: failed, all
    sample: int = 0  # tests of a file that are run; 0: all

    def recorded(self, platform: str, file: str) -> Path:
        """Where the results of a file are kept."""
        return self.results / platform / (file.replace("/", ".") + ".jsonl")

    def environment(self, platform: str) -> dict[str, str]:
        """The environment of a process that runs tests on a platform."""
        return {
            "JAX_PLATFORMS": platform,
            "JAX_NUM_CPU_DEVICES": str(DEVICES),
            "WEFT_DEVICES": str(DEVICES),
            "JAX_NUM_GENERATED_CASES": str(self.cases),
            "JAX_ENABLE_X64": str(int(self.x64)),
            "PYTHONPATH": os.pathsep.join([str(HERE), str(ROOT)]),
            "PYTHONFAULTHANDLER": "1",
        }


@dataclass(frozen=True)
class Run:
    """A file of tests on one platform."""

    settings: Settings
    platform: str
    file: str
    only: Sequence[str] | None = None  # the tests to run, if not all

    @property
    def path(self) -> Path:
        """Where its results are."""
        return self.settings.recorded(self.platform, self.file)

    def go_on(self) -> None:
        """Run the tests that have no result yet, until each has one or the time is over."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        until = time.monotonic() + self.settings.seconds_a_file
        while time.monotonic() < until and not self.is_done():
            before = len(Results.read(self.path).tests)
            self.start_process(until)
            after = Results.read(self.path)
            if after.is_finished and len(after.tests) == before:
                return  # what is left cannot be collected

    def is_done(self) -> bool:
        """Whether every test that is asked for has a result."""
        found = Results.read(self.path)
        if self.only is None:
            wanted = min(self.settings.sample or found.collected, found.collected)
            return found.is_finished and len(found.tests) >= wanted
        return not set(self.only) - set(found.tests)

    def start_process(self, until: float) -> None:
        """One process of pytest, and the line that tells how it ended."""
        known = Results.read(self.path).tests
        with tempfile.TemporaryDirectory() as folder:
            options = [f"--record-to={self.path}"]
            if self.only is None and self.settings.sample:
                options.append(f"--sample={self.settings.sample}")
            for option, ids in (("--leave-out", list(known)), ("--only", self.only)):
                if ids:
                    listed = Path(folder) / option.strip("-")
                    listed.write_text("\n".join(ids))
                    options.append(f"{option}={listed}")
            output = Path(folder) / "output"
            status, why = self.watch(options, output, until)
            tail = output.read_text(errors="replace")[-2000:]
        if why == "out of time":
            return  # what ran, and what is left, has no result
        running = Results.read(self.path).running
        line: dict[str, object] = {"test": running, "outcome": why, "seconds": 0.0, "text": tail}
        if running is None:  # all tests have run, or none can
            line = {"finished": status, **({} if status in (0, 1, 5) else {"text": tail})}
        with self.path.open("a") as lines:
            lines.write(json.dumps(line) + "\n")

    def watch(self, options: list[str], output: Path, until: float) -> tuple[int, str]:
        """The exit status of pytest, and what became of the test that ran last if it did not end.

        A test has its time from the line that says that it starts.
        """
        command = [sys.executable, "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider"]
        # JAX's test utilities skip most of their tests on a platform that they do not know.
        command += ["-p", "record_results", "--jax_test_dut=cpu", *options, f"tests/{self.file}.py"]
        with output.open("w") as out:
            process = subprocess.Popen(
                command,
                cwd=self.settings.checkout,
                env=os.environ | self.settings.environment(self.platform),
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        size, since = -1, time.monotonic()
        while process.poll() is None:
            time.sleep(POLL)
            now = time.monotonic()
            grown = self.path.stat().st_size if self.path.exists() else 0
            if grown != size:
                size, since = grown, now
            is_slow = now - since > self.settings.seconds_a_test
            if is_slow or now > until:
                os.killpg(process.pid, signal.SIGKILL)
                return process.wait(), "timeout" if is_slow else "out of time"
        return process.returncode, "crashed"


def forget(settings: Settings, file: str) -> None:
    """Drop results that are asked for again: Weft's failures, or all of a file."""
    for platform in ("weft", "cpu"):
        path = settings.recorded(platform, file)
        if settings.again == "all":
            path.unlink(missing_ok=True)
        elif platform == "weft" and path.exists():
            lines = Results.read(path).lines
            kept = [x for x in lines if x.get("outcome") in ("passed", "skipped")]
            if any(x.get("outcome") not in (None, "passed", "skipped") for x in lines):
                collected = [x for x in lines if "collected" in x][:1]
                path.write_text("".join(json.dumps(x) + "\n" for x in collected + kept))


def run_both(settings: Settings, file: str) -> str:
    """Run a file on Weft, and on JAX's CPU what did not pass; a line about it."""
    if settings.again:
        forget(settings, file)
    Run(settings, "weft", file).go_on()
    found = Results.read(settings.recorded("weft", file))
    others = [test for test, result in found.tests.items() if result["outcome"] != "passed"]
    if others or found.error:
        Run(settings, "cpu", file, others or None).go_on()
    return f"{file}: {found.summary()}"


def files_of(checkout: Path, asked: list[str]) -> Iterator[str]:
    """The files to run, without their endings: those asked for, or all that need no hardware."""
    if asked:
        yield from (re.sub(r"^tests/|\.py$", "", name) for name in asked)
        return
    left_out = read_toml(HERE / "files.toml")["left out"]
    for path in sorted((checkout / "tests").rglob("*_test.py")):
        file = path.relative_to(checkout / "tests").with_suffix("").as_posix()
        if not any(re.fullmatch(pattern, file) for pattern in left_out):
            yield file


def arguments() -> argparse.Namespace:
    """What is asked for on the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("checkout", type=Path, help="a checkout of jax-ml/jax")
    parser.add_argument("files", nargs="*", help="files of its tests; all by default")
    parser.add_argument("--cases", type=int, default=5, help="cases of generated tests; JAX's: 10")
    parser.add_argument("--x64", action="store_true", help="with 64-bit types")
    parser.add_argument("--jobs", type=int, default=2, help="files at a time")
    parser.add_argument("--seconds-a-test", type=float, default=180)
    parser.add_argument("--seconds-a-file", type=float, default=3600)
    parser.add_argument("--sample", type=int, default=0, help="random tests of a file; 0: all")
    parser.add_argument("--again", choices=("failed", "all"), default="")
    parser.add_argument("--report", action="store_true", help="run nothing")
    parser.add_argument("--results", type=Path, help="a folder; by default build/jax-tests/VERSION")
    given = parser.parse_intermixed_args()
    named = given.checkout / "jax" / "version.py"
    text = named.read_text() if named.exists() else ""
    found = re.search(r"""^_version = ["']([^"']+)""", text, re.M)
    if found is None:
        parser.error(f"{given.checkout} is no checkout of jax-ml/jax")
    if found[1] != version("jax"):
        parser.error(f"{given.checkout} is JAX {found[1]}, and {version('jax')} is installed")
    sample = f"{found[1]}{'-x64' if given.x64 else ''}"
    given.results = given.results or ROOT / "build" / "jax-tests" / sample
    return given


def main() -> int:
    """Run what has no result yet, and print the table; 1 if a failure has no reason."""
    given = arguments()
    settings = Settings(
        given.checkout.resolve(),
        given.results.resolve(),
        given.cases,
        given.x64,
        given.seconds_a_test,
        given.seconds_a_file,
        given.again,
        given.sample,
    )
    files = list(files_of(settings.checkout, given.files))
    if not given.report:
        with ThreadPoolExecutor(given.jobs) as pool:
            for line in pool.map(lambda file: run_both(settings, file), files):
                print(line, flush=True)
    recorded = {
        file: (settings.recorded("weft", file), settings.recorded("cpu", file)) for file in files
    }
    return print_report(recorded, HERE / "accepted.toml")


if __name__ == "__main__":
    sys.exit(main())
