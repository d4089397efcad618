"""Scripts in processes of their own: on Weft's devices, or on JAX's as the oracle."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
# For scripts: a call that must raise an error with a text.
REFUSED = """def refused(call, text):
    try:
        call()
    except Exception as error:
        assert text in str(error), error
    else:
        raise AssertionError(f"not refused: {text}")
"""


def run_on_weft(source: str, *, devices: int = 8, timeout: float = 300, **env: str) -> str:
    """What a script prints that runs on Weft's devices; it must end well."""
    done = start(source, "weft", devices=devices, timeout=timeout, **env)
    assert done.returncode == 0, f"exit status {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def run_on_cpu(source: str, *, devices: int = 8, timeout: float = 300, **env: str) -> str:
    """The same on JAX's own devices."""
    done = start(source, "cpu", devices=devices, timeout=timeout, **env)
    assert done.returncode == 0, f"exit status {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def start(
    source: str, platform: str, *, devices: int, timeout: float, **env: str
) -> subprocess.CompletedProcess[str]:
    """A script's process, after it has ended."""
    settings = {
        "JAX_PLATFORMS": platform,
        "WEFT_DEVICES": str(devices),
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        "PYTHONFAULTHANDLER": "1",
    }
    return subprocess.run(
        [sys.executable, "-c", source],
        env=os.environ | settings | env,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
