"""Emitted kernels compiled without a device, for NVIDIA's and AMD's GPUs."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytest.importorskip("triton")

SCRIPT = """
import sys
from triton.backends.compiler import GPUTarget
import tests.emit.triton.test_emit as t
from weft.emit.triton.emit import emitted
from weft.emit.triton.emitted import GridLaunch
from weft.emit.triton.source import compiled
t.targets.BUILT_IN["triton"] = t.NotLoaded
targets = [GPUTarget("cuda", 90, 32), GPUTarget("cuda", 100, 32), GPUTarget("hip", "gfx942", 64)]
for name in sys.argv[2:]:
    for kernel in t.kernels(name):
        for part in emitted(kernel).parts:
            if isinstance(part, GridLaunch):
                for target in targets[: int(sys.argv[1])]:
                    assert compiled(part, target).asm, (name, target)
print("compiled")
"""


def run(targets: int, *names: str) -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "0"}
    line = [sys.executable, "-c", SCRIPT, str(targets), *names]
    done = subprocess.run(line, env=environment, capture_output=True, text=True)
    assert done.stdout == "compiled\n", done.stderr


def test_kernels_compile_for_hopper():
    run(1, "softmax", "rotary", "bytes, a short sum")


@pytest.mark.long
def test_all_kernels_compile_for_every_gpu():
    from tests.emit.triton.corpus import CASES

    run(3, *CASES)
