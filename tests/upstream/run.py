"""JAX's own tests, from a checkout of jax-ml/jax, on Weft's devices and on JAX's CPU as the oracle.

Every file runs in a process of its own. Results are kept by file as JSON lines, so that a run that
was stopped goes on where it was; a crash or a test that takes too long is a result like any other,
and the rest of its file runs in a new process. The oracle runs only what did not pass on Weft.

    python tests/upstream/run.py DIR                       all files but those of `files.toml`
    python tests/upstream/run.py DIR pjit_test array_test  these files
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
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(HERE))

from report import print_report  # noqa: E402
from results import Results, read_toml  # noqa: E402

DEVICES = 8


@dataclass(frozen=True)
class Settings:
    """Where the tests and the results are, and how long tests may take."""

    checkout: Path
    results: Path
    cases: int
    x64: bool
    seconds_a_test: float
    seconds_a_file: float
    again: str

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


def run_file(settings: Settings, platform: str, file: str, only: list[str] | None = None) -> None:
    """Run a file's tests that have no result yet, until each has one or the time is over."""
    path = settings.recorded(platform, file)
    path.parent.mkdir(parents=True, exist_ok=True)
    until = time.monotonic() + settings.seconds_a_file
    while True:
        found = Results.read(path)
        if found.is_finished and not (only and set(only) - set(found.tests)):
            return
        if only is not None and not set(only) - set(found.tests):
            return
        if time.monotonic() > until:
            return
        run_once(settings, platform, file, found, only, until)


def run_once(
    settings: Settings,
    platform: str,
    file: str,
    found: Results,
    only: list[str] | None,
    until: float,
) -> None:
    """One process of pytest, and a line for the test that it ended with, if it did not end well."""
    path = settings.recorded(platform, file)
    with tempfile.TemporaryDirectory() as folder:
        chosen = [f"--record-to={path}"]
        for option, ids in (("--leave-out", list(found.tests)), ("--only", only)):
            if ids:
                listed = Path(folder) / option.strip("-")
                listed.write_text("\n".join(ids))
                chosen.append(f"{option}={listed}")
        output = Path(folder) / "output"
        status, why = watch(settings, platform, file, chosen, output, until)
        ended = Results.read(path)
        tail = output.read_text(errors="replace")[-2000:]
    with path.open("a") as lines:
        if ended.running is not None:
            seconds = settings.seconds_a_test if why == "timeout" else 0
            if why != "out of time":
                line = {"test": ended.running, "outcome": why, "seconds": seconds, "text": tail}
                lines.write(json.dumps(line) + "\n")
        elif why != "out of time":
            # Nothing ran when the process ended: all tests have run, or none can.
            bad = {} if status in (0, 1, 5) else {"text": tail}
            lines.write(json.dumps({"finished": status, **bad}) + "\n")


def watch(
    settings: Settings, platform: str, file: str, options: list[str], output: Path, until: float
) -> tuple[int, str]:
    """The exit status of a process of pytest and why it ended early: crashed, timeout, out of time.

    A test has its time from the line that says that it starts.
    """
    command = [sys.executable, "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    # Test utilities that do not know a platform skip most of what they would try on it.
    command += ["-p", "record_results", "--jax_test_dut=cpu", *options, f"tests/{file}.py"]
    path = settings.recorded(platform, file)
    with output.open("w") as out:
        process = subprocess.Popen(
            command,
            cwd=settings.checkout,
            env=os.environ | settings.environment(platform),
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        size, since = -1, time.monotonic()
        while process.poll() is None:
            time.sleep(0.2)
            now = time.monotonic()
            grown = path.stat().st_size if path.exists() else 0
            if grown != size:
                size, since = grown, now
            for why, late in (
                ("timeout", now - since > settings.seconds_a_test),
                ("out of time", now > until),
            ):
                if late:
                    os.killpg(process.pid, signal.SIGKILL)
                    return process.wait(), why
    return process.returncode, "crashed"


def forget(settings: Settings, file: str) -> None:
    """Drop results that are asked for again: failures, or all of them."""
    for platform in ("weft", "cpu") if settings.again == "all" else ("weft",):
        path = settings.recorded(platform, file)
        if not path.exists():
            continue
        if settings.again == "all":
            path.unlink()
        else:
            found = Results.read(path)
            kept = [line for line in found.lines if line.get("outcome") in ("passed", "skipped")]
            collected = [line for line in found.lines if "collected" in line][:1]
            path.write_text("".join(json.dumps(line) + "\n" for line in collected + kept))


def run_both(settings: Settings, file: str) -> str:
    """Run a file on Weft, and on JAX's CPU what did not pass."""
    if settings.again:
        forget(settings, file)
    run_file(settings, "weft", file)
    found = Results.read(settings.recorded("weft", file))
    others = [test for test, result in found.tests.items() if result["outcome"] != "passed"]
    if others or found.error:
        run_file(settings, "cpu", file, others or None)
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


def main() -> int:
    """Run what has no result yet, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkout", type=Path, help="a checkout of jax-ml/jax")
    parser.add_argument("files", nargs="*", help="files of its tests; all by default")
    parser.add_argument("--cases", type=int, default=5, help="cases of generated tests; JAX's: 10")
    parser.add_argument("--x64", action="store_true", help="with 64-bit types")
    parser.add_argument("--jobs", type=int, default=2, help="files at a time")
    parser.add_argument("--seconds-a-test", type=float, default=180)
    parser.add_argument("--seconds-a-file", type=float, default=3600)
    parser.add_argument("--again", choices=("failed", "all"), default="")
    parser.add_argument("--report", action="store_true", help="run nothing")
    parser.add_argument("--results", type=Path, help="a folder; by default build/jax-tests/VERSION")
    asked = parser.parse_intermixed_args()
    found = re.search(r'^_version = ["\']([^"\']+)', (asked.checkout / "jax/version.py").read_text(), re.M)
    if found is None or found[1] != version("jax"):
        parser.error(f"{asked.checkout} has {found and found[1]}, installed is {version('jax')}")
    sample = f"{found[1]}{'-x64' if asked.x64 else ''}"
    settings = Settings(
        asked.checkout.resolve(),
        asked.results or ROOT / "build" / "jax-tests" / sample,
        asked.cases,
        asked.x64,
        asked.seconds_a_test,
        asked.seconds_a_file,
        asked.again,
    )
    files = list(files_of(settings.checkout, asked.files))
    if not asked.report:
        with ThreadPoolExecutor(asked.jobs) as pool:
            for line in pool.map(lambda file: run_both(settings, file), files):
                print(line, flush=True)
    return print_report(
        {f: (settings.recorded("weft", f), settings.recorded("cpu", f)) for f in files}, HERE
    )


if __name__ == "__main__":
    sys.exit(main())
