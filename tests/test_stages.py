"""Stages: every one has a text that is read back, and a pipeline stops after any of them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from weft.capture import parse
from weft.errors import WeftError
from weft.executable.read import read_tiled
from weft.executable.text import tiled_text
from weft.executable.verify import verify_tiled
from weft.pipeline import STAGES, compile_module, local_program

EXAMPLES = Path(__file__).parent.parent / "examples"
GOLDEN = Path(__file__).parent / "golden" / "stages"
LATE = ("partitioned", "tiled", "emitted")


def read(name: str):
    """An example, by a path that is the same everywhere."""
    return parse((EXAMPLES / f"{name}.mlir").read_text())


def host_part(text: str) -> str:
    """The text of an emitted program before its kernels' own, which depend on the processor."""
    return text.partition("\ntext ")[0] + "\n"


@pytest.mark.parametrize("target", ["llvm", "numpy"])
@pytest.mark.parametrize("stage", LATE)
@pytest.mark.parametrize("name", ["sharded_mlp", "newton"])
def test_golden_texts(name: str, stage: str, target: str, golden) -> None:
    program = compile_module(read(name), target=target)
    text = host_part(program.text(stage))
    golden(GOLDEN / f"{name}-{stage}-{target}.txt", text)


def test_emitted_text_ends_with_what_each_kernel_becomes() -> None:
    program = compile_module(read("sharded_mlp"), target="llvm")
    _, *texts = program.text("emitted").split("\ntext ")
    names = [text.partition("\n")[0] for text in texts]
    assert names == [kernel.name for kernel in program.executable.kernels()]
    assert all("define " in text for text in texts)


@pytest.mark.parametrize("to", STAGES)
def test_a_pipeline_stops_after_any_stage(to: str) -> None:
    program = compile_module(read("sharded_mlp"), target="llvm", to=to)
    assert program.text(to)
    later = STAGES[STAGES.index(to) + 1 :]
    for stage in later:
        with pytest.raises(WeftError, match="unknown stage"):
            program.text(stage)
    assert (program.loaded is None) is bool(later)


@pytest.mark.parametrize("target", ["llvm", "numpy"])
@pytest.mark.parametrize("since", STAGES[:4])
def test_a_pipeline_goes_on_from_the_text_of_a_stage(since: str, target: str) -> None:
    whole = compile_module(read("sharded_mlp"), target=target)
    module = parse(whole.text(since, locations=True))
    again = compile_module(module, target=target, since=since)
    assert again.text("emitted", locations=True) == whole.text("emitted", locations=True)


@pytest.mark.parametrize("target", ["llvm", "numpy"])
@pytest.mark.parametrize("name", ["sharded_mlp", "newton", "mlp"])
def test_tiled_text_is_read_back_and_runs_to_the_same_bits(name: str, target: str) -> None:
    program = compile_module(read(name), target=target)
    made = program.executable
    text = made.text()
    tiled, plan = read_tiled(text.text, text.resources)
    verify_tiled(tiled, plan)
    assert tiled_text(tiled, plan) == text
    short = made.text(locations=False)
    again = tiled_text(*read_tiled(short.text, short.resources), locations=False)
    assert again.text == re.sub("   ; .*", "", short.text)  # the user's lines are for people


def test_tiling_needs_no_llvmlite() -> None:
    """Explaining and predicting need only that."""
    code = f"""
import sys
sys.modules["llvmlite"] = None
from weft.capture import parse
from weft.pipeline import compile_module
program = compile_module(parse({str(EXAMPLES / "sharded_mlp.mlir")!r}), target="llvm", to="tiled")
assert "launch contract" in program.text("tiled")
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_large_constants_are_beside_the_text() -> None:
    values = np.arange(600, dtype=np.float32)
    hexed = values.tobytes().hex().upper()
    text = f"""func.func @main(%x: tensor<600xf32>) -> tensor<600xf32> {{
  %c = stablehlo.constant dense<"0x{hexed}"> : tensor<600xf32>
  %y = stablehlo.add %x, %c : tensor<600xf32>
  return %y : tensor<600xf32>
}}"""
    program = local_program(parse(text), devices=1)
    written = tiled_text(program.tiled, program.plan)
    (name,) = written.resources
    assert f"resource {name}" in written.text and len(written.text) < 2000
    np.testing.assert_array_equal(written.resources[name].reshape(-1), values)
    with pytest.raises(WeftError, match=f"the resource {name} is missing"):
        read_tiled(written.text)
