"""The targets that can be asked for: those of Weft, and those of installed packages."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft
from tests.pages import A_TARGET, blocks
from tests.run.toy_target import ToyTarget
from weft import targets
from weft.cli import main
from weft.cli.commands.installation.ops import tables
from weft.emit.llvm.target import LLVM
from weft.errors import WeftError, WeftWarning
from weft.ir.types import F32
from weft.kernels.ops import MOVED, PRODUCTS, REDUCED
from weft.ops import OPS
from weft.ops.elementwise.pointwise import Add
from weft.ops.sort import Sort
from weft.target import Options, Target
from weft.targets import installed_targets, target_named, target_names
from weft.tile.drafts.products import PRODUCTS as PRODUCED
from weft.tile.drafts.pulls import MAPS, REDUCTIONS
from weft.tile.drafts.views import VIEWS

# A package with a target that works, one that cannot be imported, one with holes, and no target.
ENTRIES = """
[weft.targets]
toy = tests.run.toy_target:ToyTarget
broken = a_module_that_is_not_there:Target
partial = tests.test_targets:Partial
other = tests.test_targets:Other
llvm = a_module_that_is_not_there:Target
"""
PROGRAM = """
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = stablehlo.tanh %x : tensor<4xf32>
  %1 = stablehlo.add %0, %x : tensor<4xf32>
  return %1 : tensor<4xf32>
}
"""


class Partial(Target):
    """A target that is not finished."""

    name = "partial"

    def load(self, kernels: Sequence[Any]) -> Sequence[Any]:
        return kernels


class Other:
    """What was written for something else."""

    def __init__(self, options: Options) -> None:
        self.options = options


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
    assert target_names() == ("llvm", "numpy", "triton", "toy", "broken", "partial", "other")
    compiled = weft.compile(PROGRAM, target="toy")
    assert compiled.program.local.target.name == "toy"
    x = np.linspace(-1, 1, 4, dtype=np.float32)
    (made,) = compiled(x)
    np.testing.assert_allclose(np.asarray(made), np.tanh(x) + x, rtol=1e-6)


def test_a_broken_one_names_its_package(package: None):
    with pytest.raises(
        WeftError, match=r"'broken' of package more-targets 1\.2 cannot be loaded: Mod"
    ):
        target_named("broken")


def test_one_with_holes_names_them(package: None):
    with pytest.raises(WeftError, match=r"package more-targets 1.2 cannot be loaded: .* commands"):
        target_named("partial")


def test_what_is_no_target_is_refused(package: None):
    with pytest.raises(
        WeftError, match=r"'other' of package more-targets 1.2 is not a target, but a Other"
    ):
        target_named("other")


def test_weft_ops_shows_it_and_says_what_is_broken(package: None, capsys: pytest.CaptureFixture):
    tables.cache_clear()
    with pytest.warns(WeftWarning, match="of package more-targets 1.2") as told:
        assert main(["ops", "tanh"]) == 0
    assert [str(w.message).split("'")[1] for w in told] == ["broken", "partial", "other"]
    tables.cache_clear()
    shown = " ".join(capsys.readouterr().out.split())
    assert "llvm (loops)," in shown and "toy (loops)" in shown


def test_nothing_is_imported_until_it_is_asked_for(package: None):
    assert type(target_named("llvm")).__module__ == "weft.emit.llvm.target"
    with pytest.raises(WeftError, match="unknown target 'gpu'") as found:
        target_named("gpu")
    assert "expected llvm, numpy, triton, toy, broken, partial, other" in str(found.value)


def test_every_target_answers_for_every_op(package: None):
    found, broken = installed_targets()
    assert [name for name in found if name != "triton"] == ["llvm", "toy"] and len(broken) == 3
    for target in found.values():
        assert [op.name for op in OPS if op not in target.table] == []
        assert [op.name for op in target.table if op not in OPS] == []


def test_tile_makes_loops_of_what_targets_are_told():
    assert {*MAPS, *VIEWS} == MOVED
    assert {*REDUCTIONS} == REDUCED and {*PRODUCED} == PRODUCTS


def test_a_target_that_says_nothing_leaves_the_rest_to_numpy():
    toy = ToyTarget()
    assert toy.unsupported_op(Add(), (F32, F32), (F32,)) is None
    assert toy.unsupported_op(Sort(0), (F32,), (F32,)) == "no kernel of loops computes it"
    assert toy.table[Sort].how == "library" and toy.identity is None
    assert toy.with_options(Options(tune="off")) == ToyTarget(Options(tune="off")) != LLVM()


def test_the_page_is_short():
    """A target is no more than 150 lines, all of them on the page."""
    (_, module), *_ = blocks(A_TARGET, "python")
    assert "class Toy(Target)" in module and len(module.splitlines()) < 150
