"""The targets that can be asked for: those of Weft, and those of installed packages."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import weft
from weft import targets
from weft.cli import main
from weft.cli.ops import tables
from weft.errors import WeftError, WeftWarning
from weft.ops import OPS
from weft.target import Options
from weft.targets import installed_targets, target_named, target_names

# A package with three targets: one that works, one that cannot be imported, one that has holes.
ENTRIES = """
[weft.targets]
toy = tests.run.toy_target:ToyTarget
broken = a_module_that_is_not_there:Target
partial = tests.test_targets:Partial
llvm = a_module_that_is_not_there:Target
"""
PROGRAM = """
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = stablehlo.tanh %x : tensor<4xf32>
  %1 = stablehlo.add %0, %x : tensor<4xf32>
  return %1 : tensor<4xf32>
}
"""


class Partial:
    """A target that was written for something else."""

    def __init__(self, options: Options) -> None:
        self.options, self.name = options, "partial"


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A package that is installed."""
    info = tmp_path / "more_targets-1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: more-targets\nVersion: 1.2\n")
    (info / "entry_points.txt").write_text(ENTRIES)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    targets._plugins.cache_clear()
    yield
    targets._plugins.cache_clear()


def test_a_target_of_a_package_runs_programs(package: None):
    assert target_names() == ("llvm", "numpy", "toy", "broken", "partial")
    compiled = weft.compile(PROGRAM, target="toy")
    assert compiled.program.local.target.name == "toy"
    x = np.linspace(-1, 1, 4, dtype=np.float32)
    (made,) = compiled(x)
    np.testing.assert_allclose(np.asarray(made), np.tanh(x) + x, rtol=1e-6)


def test_a_broken_one_names_its_package(package: None):
    with pytest.raises(
        WeftError, match=r"'broken' of package more-targets 1\.2 cannot be had: Mod"
    ):
        target_named("broken")


def test_one_with_holes_names_them(package: None):
    with pytest.raises(WeftError, match=r"package more-targets 1.2 is not complete: it has no acc"):
        target_named("partial")


def test_weft_ops_shows_it_and_says_what_is_broken(package: None, capsys: pytest.CaptureFixture):
    tables.cache_clear()
    with pytest.warns(WeftWarning, match="'broken' of package more-targets"):
        assert main(["ops", "tanh"]) == 0
    tables.cache_clear()
    assert "llvm (loops), toy (loops)" in " ".join(capsys.readouterr().out.split())


def test_nothing_is_imported_until_it_is_asked_for(package: None):
    assert type(target_named("llvm")).__module__ == "weft.emit.llvm.target"
    with pytest.raises(WeftError, match="no target 'gpu'") as found:
        target_named("gpu")
    assert "targets are llvm, numpy, toy, broken, partial" in str(found.value)


def test_every_target_answers_for_every_op(package: None):
    found, broken = installed_targets()
    assert list(found) == ["llvm", "toy"] and len(broken) == 2
    for target in found.values():
        assert [op.name for op in OPS if op not in target.table] == []
        assert [op.name for op in target.table if op not in OPS] == []
