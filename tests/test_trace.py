"""The trace of a compilation: what is written, and what becomes of a folder that cannot be."""

from __future__ import annotations

import errno
import re
import warnings
from pathlib import Path

import numpy as np
import pytest

import weft

SOURCE = """
func.func @main(%x: tensor<8x4xf32>, %y: tensor<4x4xf32>) -> tensor<8x4xf32> {
  %0 = stablehlo.dot_general %x, %y, contracting_dims = [1] x [0]
      : (tensor<8x4xf32>, tensor<4x4xf32>) -> tensor<8x4xf32>
  %1 = stablehlo.tanh %0 : tensor<8x4xf32>
  return %1 : tensor<8x4xf32>
}
"""


def run() -> None:
    """Compile and run the program; the trace must not change what comes out."""
    made = weft.compile(SOURCE, mesh="data=4")(np.ones((8, 4), "f4"), np.ones((4, 4), "f4"))
    np.testing.assert_allclose(np.asarray(made[0]), np.tanh(4.0), rtol=1e-6)


def test_kernels_and_a_summary(tmp_path, monkeypatch):
    monkeypatch.setenv("WEFT_TRACE", str(tmp_path))
    run()
    (folder,) = tmp_path.iterdir()
    kernels = [path.read_text() for path in (folder / "kernels").iterdir()]
    assert kernels and all(text.startswith("; kernel ") and "define " in text for text in kernels)
    summary = (folder / "summary.txt").read_text()
    for stage in ("sharded", "partitioned", "optimized", "tiled", "emitted"):
        assert f"\n  {stage} " in summary
    assert "time to compile: " in summary and " ms" in summary
    assert f"{len(kernels)} distinct kernels" in summary
    assert "dot_general, tanh" in summary
    assert "peak" in summary


TWICE = """
func.func @main(%x: tensor<8x4xf32>, %y: tensor<4x4xf32>) -> (tensor<8x4xf32>, tensor<8x4xf32>) {
  %0 = stablehlo.dot_general %x, %y, contracting_dims = [1] x [0]
      : (tensor<8x4xf32>, tensor<4x4xf32>) -> tensor<8x4xf32>
  %1 = stablehlo.dot_general %0, %y, contracting_dims = [1] x [0]
      : (tensor<8x4xf32>, tensor<4x4xf32>) -> tensor<8x4xf32>
  %2 = "stablehlo.sort"(%1) <{dimension = 1 : i64}> ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %3 = stablehlo.compare LT, %a, %b : (tensor<f32>, tensor<f32>) -> tensor<i1>
    stablehlo.return %3 : tensor<i1>
  }) : (tensor<8x4xf32>) -> tensor<8x4xf32>
  return %1, %2 : tensor<8x4xf32>, tensor<8x4xf32>
}
"""


@pytest.mark.parametrize("target", ["llvm", "numpy"])
def test_the_summary_of_kernels_and_memory(target, tmp_path, monkeypatch, golden):
    monkeypatch.setenv("WEFT_TRACE", str(tmp_path))
    weft.compile(TWICE, mesh="data=4", target=target)
    (folder,) = tmp_path.iterdir()
    summary = (folder / "summary.txt").read_text()
    text = re.sub(r"_[0-9a-f]{8}\b", "", re.sub(r" +[\d,.]+ ms", " .. ms", summary))
    golden(Path(__file__).parent / "golden" / "stages" / f"summary-{target}.txt", text)


def test_numpy_has_no_kernels(tmp_path, monkeypatch):
    monkeypatch.setenv("WEFT_TRACE", str(tmp_path))
    weft.compile(SOURCE, mesh="data=4", target="numpy")
    (folder,) = tmp_path.iterdir()
    assert not (folder / "kernels").exists()
    assert "in no kernel, run by numpy:\n  dot_general" in (folder / "summary.txt").read_text()


def test_a_full_disk_is_a_warning_and_no_loss(tmp_path, monkeypatch):
    monkeypatch.setenv("WEFT_TRACE", str(tmp_path))
    write = Path.write_text

    def full(path: Path, text: str, **more: str) -> int:
        if "02-" in path.name:
            write(path, text[:10], **more)
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(path, text, **more)

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.warns(RuntimeWarning, match=r"No space left on device.*traces are incomplete"):
        run()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run()
    first, _ = sorted(tmp_path.iterdir())
    assert [path.name for path in first.iterdir()] == ["01-captured.mlir"], "no half of a file"


@pytest.mark.parametrize("place", ["file", "file/inside"])
def test_a_folder_that_cannot_be_made_is_a_warning(place, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("WEFT_TRACE", str(tmp_path / place))
    with pytest.warns(RuntimeWarning, match="cannot be written to"):
        run()
