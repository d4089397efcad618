"""JAX's own multi-process tests, as JAX starts them: each file in four processes of one device.

python tests/upstream/processes.py DIR                     all files of a checkout of jax-ml/jax
python tests/upstream/processes.py DIR pjit_test           these files
python tests/upstream/processes.py DIR --devices 2         devices of each process
python tests/upstream/processes.py DIR --platform cpu      on JAX's own devices
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LEFT_OUT = {
    "pgle_test": "NVIDIA GPUs",
    "socket_transfer_test": "transfers over sockets, which JAX's own build leaves out, too",
    "tpu_device_test": "TPUs",
}
SECONDS = 600  # of a file
DONE = re.compile(r"Process \d+, ret: (-?\d+).*?(?:Ran (\d+) tests?.*?; (\w+)(?: \((.*)\))?)?$")


def environment(platform: str, devices: int, folder: str) -> dict[str, str]:
    """The variables of a test's processes."""
    path = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    return {
        **os.environ,
        "JAX_PLATFORMS": platform,
        "WEFT_DEVICES": str(devices),
        "JAX_NUM_CPU_DEVICES": str(devices),
        "PYTHONPATH": os.pathsep.join(filter(None, path)),
        "TEST_UNDECLARED_OUTPUTS_DIR": folder,
    }


def run(checkout: Path, file: str, options: argparse.Namespace) -> tuple[str, bool]:
    """A row about a file, of the process with most failures; and whether all processes passed."""
    # JAX skips tests by the name of the platform; Weft's devices are like its CPU.
    line = [sys.executable, f"tests/multiprocess/{file}.py", "--extra_test_args=--jax_test_dut=cpu"]
    with tempfile.TemporaryDirectory() as folder:
        process = subprocess.Popen(
            [*line, f"--num_processes={options.processes}"],
            cwd=checkout,
            env=environment(options.platform, options.devices, folder),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            text, _ = process.communicate(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return f"| {file} | no end within {SECONDS} s | | |", False
    if options.verbose and process.returncode:
        print(text)
    counts = []
    for found in filter(None, map(DONE.match, text.splitlines())):
        parts = {k: int(n) for k, n in re.findall(r"(\w+)=(\d+)", found[4] or "")}
        skipped = parts.pop("skipped", 0)
        failed = sum(parts.values()) if found[2] else 1  # it crashed
        counts.append((failed, int(found[2] or 0) - failed - skipped, skipped))
    if not counts:
        return f"| {file} | did not start: {text[-200:]!r} | | |", False
    failed, passed, skipped = max(counts)
    return f"| {file} | {passed} | {failed or ''} | {skipped or ''} |", process.returncode == 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("files", nargs="*")
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--platform", default="weft")
    parser.add_argument("--verbose", action="store_true", help="print the output of failures")
    options = parser.parse_args()
    found = sorted(
        path.stem for path in (options.checkout / "tests/multiprocess").glob("*_test.py")
    )
    print("| file | passed | failed | skipped |\n|---|---|---|---|")
    good = True
    for file in options.files or [name for name in found if name not in LEFT_OUT]:
        row, passed = run(options.checkout, file, options)
        print(row, flush=True)
        good &= passed
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
