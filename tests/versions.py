"""The door's tests and examples on every Python and JAX that Weft supports: `make test-versions`.

By default these are the tests of what versions can break, a few minutes for each pair; with
`--whole` (`make test-versions ARGS=--whole`), all tests of the doors.
Each pair has an environment of its own, `.venv-<python>-jax<jax>`, which is made where it lacks and
renewed when the project's requirements change. Any Python from 3.11 on runs this script.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PYTHONS = ("3.11", "3.12", "3.13")
JAXES = ("0.10", "0.11", "0.12")
FIRST_PYTHON = {"0.11": (3, 12), "0.12": (3, 12)}  # of JAX: older ones cannot install it
FREE = {"jax", "jaxlib", "numpy"}  # what constraints.txt pins for the main environment only
# What versions differ in: the C API and the functions of JAX that are replaced, what it lowers to,
# its pytrees and shardings; the layout of CPython's objects, its syntax trees and its dataclasses.
JAX_TESTS = "door start versions examples exports guards explicit corners shardings shard_map"
TESTS = (
    *(f"tests/jax/test_{name}.py" for name in JAX_TESTS.split()),
    *("tests/jax/test_custom_partitioning.py", "tests/jax/programs"),
    *("tests/jax/buffers/test_arrays.py", "tests/jax/buffers/test_dlpack.py"),
    *("tests/jax/native/test_native_slots.py", "tests/jax/native/test_quick_calls.py"),
    *("tests/capture/test_jax.py", "tests/capture/test_sources.py", "tests/capture/test_doors.py"),
    *("tests/capture/test_stablehlo.py", "tests/capture/test_device_order.py"),
    *("tests/native", "tests/run/test_direct.py", "tests/array/test_exports.py"),
    *("tests/test_compile_calls.py", "tests/test_records.py"),
)
WHOLE = (
    *("tests/jax", "tests/capture", "tests/array", "tests/native", "tests/run/test_direct.py"),
    *("tests/test_compile.py", "tests/test_compile_calls.py", "tests/test_compile_effects.py"),
    "tests/test_records.py",
)
EXAMPLES = ("examples/llama.py", "examples/forward.py")  # tests/jax runs those of examples/jax


@dataclass(frozen=True, slots=True)
class Row:
    """What came of one pair of versions."""

    python: str
    jax: str
    numpy: str
    result: str
    is_fine: bool
    seconds: float = 0.0


def interpreter(version: str) -> Path | None:
    """A Python of a version: on the PATH, or pyenv's newest."""
    home = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    kept = sorted(home.glob(f"versions/{version}.*/bin/python"), key=_numbers, reverse=True)
    on_path = shutil.which(f"python{version}")
    for found in (*([Path(on_path)] if on_path else ()), *kept):
        if _asked(found, "import ensurepip, sys; print('%d.%d' % sys.version_info[:2])") == version:
            return found
    return None


def _numbers(path: Path) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", path.parts[-3])]


def _asked(python: Path, source: str) -> str:
    done = subprocess.run([python, "-c", source], capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""


def environment(python: Path, version: str, jax: str) -> Path:
    """The Python of an environment with one JAX, installed anew if the requirements changed."""
    folder = ROOT / f".venv-{version}-jax{jax}"
    pins = (ROOT / "constraints.txt").read_text().splitlines()
    kept = [pin for pin in pins if pin.partition("==")[0] not in FREE]
    wanted = "\n".join([*kept, f"jax=={jax}.*", f"jaxlib=={jax}.*", ""])
    stamp, project = folder / "installed.txt", (ROOT / "pyproject.toml").read_text()
    own = folder / "bin" / "python"
    if stamp.exists() and stamp.read_text() == wanted + project and _asked(own, "print(1)"):
        return own
    print(f"making {folder.name} ...", flush=True)
    subprocess.run([python, "-m", "venv", "--clear", folder], check=True)
    constraints = folder / "constraints.txt"
    constraints.write_text(wanted)
    install = "-m pip install -qq --disable-pip-version-check".split()
    subprocess.run([own, *install, "-c", constraints, "-e", f"{ROOT}[test]"], check=True)
    stamp.write_text(wanted + project)
    return own


def tried(version: str, jax: str, jobs: int, tests: list[str]) -> Row:
    """Run the tests and examples in the environment of one pair."""
    python = interpreter(version)
    if python is None:
        missing = f"no Python {version} on the PATH or in pyenv: pyenv install {version}"
        return Row(version, jax, "", missing, False)
    began = time.monotonic()
    try:
        own = environment(python, version, jax)
    except subprocess.CalledProcessError as error:
        return Row(version, jax, "", f"not installed: exit status {error.returncode}", False)
    names = "from importlib.metadata import version as v; import platform as p"
    shown = f"{names}; print(p.python_version(), v('jax'), v('numpy'))"
    versions = _asked(own, shown).split()
    log = own.parents[1] / "tests.log"
    print(f"testing {own.parents[1].name} ... ({log.relative_to(ROOT)})", flush=True)
    with log.open("w") as file:
        what = [own, "-m", "pytest", "-q", "-n", str(jobs), "-p", "no:cacheprovider", *tests]
        failed = [] if _ran(what, file) else ["tests"]
        failed += [name for name in EXAMPLES if not _ran([own, name], file)]
    text = log.read_text()
    for line in re.findall(r"^(?:FAILED|ERROR) .*$", text, re.M):
        print(f"  {line}")
    found = re.findall(r"^(?=.*\d (?:passed|failed|error)).* in \d.*$", text, re.M)
    result = (found[-1].partition(" in ")[0] if found else "no tests ran").strip("= ")
    result += f"; failed: {', '.join(failed)}" if failed else "; examples ran"
    return Row(*versions, result, not failed and bool(found), time.monotonic() - began)


def _ran(command: list[object], log: object) -> bool:
    settings = {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [*map(str, command)], cwd=ROOT, stdout=log, stderr=log, env=os.environ | settings
    )
    return done.returncode == 0


def table(rows: list[Row]) -> str:
    """The rows under each other."""
    cells = [("python", "jax", "numpy", "", "result", "time")]
    for row in rows:
        spent = f"{row.seconds // 60:.0f}:{row.seconds % 60:02.0f}"
        mark = "ok" if row.is_fine else "FAILED"
        cells.append((row.python, row.jax, row.numpy, mark, row.result, spent))
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ["  ".join(map(str.ljust, line, widths)).rstrip() for line in cells]
    return "\n".join(lines)


def main() -> int:
    """Try all pairs that can be installed, and print what came of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pythons", nargs="+", default=PYTHONS)
    parser.add_argument("--jaxes", nargs="+", default=JAXES)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--whole", action="store_true", help="all tests of the doors to JAX")
    parser.add_argument("tests", nargs="*", help="these tests, not those that versions differ in")
    given = parser.parse_args()
    tests = given.tests or [*(WHOLE if given.whole else TESTS)]
    rows = []
    for version in given.pythons:
        for jax in given.jaxes:
            first = FIRST_PYTHON.get(jax, (3, 11))
            if tuple(map(int, version.split("."))) < first:
                print(f"JAX {jax} is not for Python {version}: it begins at {first[0]}.{first[1]}")
                continue
            rows.append(tried(version, jax, given.jobs, tests))
            print(f"  {rows[-1].result}", flush=True)
    print(table(rows))
    return 0 if rows and all(row.is_fine for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
