"""Smoke tests of the parts of Weft, each in a subprocess.

A crash, as by an instruction that the processor lacks, is then a finding as well.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from weft.records import dataclass

SECONDS = 120.0  # timeout of a check
_GENERIC = """"builtin.module"() ({
  "func.func"() <{function_type = (tensor<4xf32>) -> tensor<4xf32>, sym_name = "main"}> ({
  ^bb0(%arg0: tensor<4xf32>):
    %0 = "stablehlo.add"(%arg0, %arg0) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
    "func.return"(%0) : (tensor<4xf32>) -> ()
  }) : () -> ()
}) : () -> ()
"""


@dataclass(frozen=True, slots=True)
class Finding:
    """The outcome of a check: a line of text, and whether it passed."""

    name: str
    works: bool
    text: str


def run_checks(names: Sequence[str]) -> list[Finding]:
    """Run several checks at once."""
    started = [(name, _start(name)) for name in names]
    return [_finish(name, process) for name, process in started]


def _start(name: str) -> subprocess.Popen[str]:
    code = f"from weft.cli.commands.installation.doctor_checks import main; main({name!r})"
    return subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | _SETTINGS.get(name, {}),
        text=True,
        errors="replace",
    )


def _finish(name: str, process: subprocess.Popen[str]) -> Finding:
    try:
        out, err = process.communicate(timeout=SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return Finding(name, False, f"gave no answer in {SECONDS:.0f} seconds")
    if process.returncode == 0:
        return Finding(name, True, out.strip().rpartition("\n")[2])
    return Finding(name, False, _reason(err) or f"ended with status {process.returncode}")


def _reason(err: str) -> str:
    """The error line in the output of a failed check."""
    lines = [line.strip() for line in err.strip().splitlines() if line.strip()]
    errors = [line for line in lines if "error: " in line or line.startswith("help: ")]
    raised = [line for line in lines if "Error: " in line]
    chosen = errors[-2:] or raised[-1:] or lines[-1:]
    return "; ".join(line.partition("WeftError: ")[2] or line for line in chosen)


# In the subprocess


def _target(name: str) -> str:
    from weft.ir.read import read_module
    from weft.ops import BY_NAME
    from weft.pipeline import compile_module
    from weft.run import run

    module = read_module(_GENERIC, BY_NAME)
    began = time.perf_counter()
    program = compile_module(module, target=name)
    got = np.asarray(run(program.local, np.arange(4, dtype=np.float32))[0])
    assert got.tolist() == [0.0, 2.0, 4.0, 6.0], got
    milliseconds = 1e3 * (time.perf_counter() - began)
    return f"a program ran, compiled and all in {milliseconds:.0f} ms"


def _stablehlo() -> str:
    import weft

    module = weft.parse("func.func @main(%x: tensor<4xf32>) { return }")
    assert "main" in module.functions
    return "a program was read"


def _jax() -> str:
    import weft

    got = np.asarray(weft.compile(lambda x: x * 2)(np.float32(3)))
    assert got == 6, got
    return "a JAX function was compiled and ran"


def _plugin() -> str:
    import jax

    devices = jax.devices()
    assert devices[0].platform == "weft", devices
    got = np.asarray(jax.jit(lambda x: x + 1)(np.arange(3, dtype=np.float32)))
    assert got.tolist() == [1.0, 2.0, 3.0], got
    return f"JAX found it: {len(devices)} devices with JAX_PLATFORMS=weft, and a program ran"


CHECKS: Mapping[str, Callable[[], str]] = {
    "numpy": lambda: _target("numpy"),
    "llvm": lambda: _target("llvm"),
    "stablehlo": _stablehlo,
    "jax": _jax,
    "plugin": _plugin,
}
_SETTINGS = {"plugin": {"JAX_PLATFORMS": "weft"}}


def main(name: str) -> None:
    """Run one check and print its line."""
    print(CHECKS[name]())
