"""`weft compare`: the outputs of a PyTorch model's modules, sharded against eager."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from weft import Mesh
from weft.cli import main
from weft.compare import RequiredCorrelation, compare_modules, read_required
from weft.errors import WeftError

torch = pytest.importorskip("torch")

MESH = Mesh(data=2, model=4)


class Twice(torch.nn.Module):
    """A layer that is called twice, and one that spoils its input when it is traced."""

    def __init__(self, spoil=None):
        super().__init__()
        self.up, self.down = torch.nn.Linear(8, 16), torch.nn.Linear(16, 8)
        self.act, self.spoil = torch.nn.ReLU(), spoil

    def forward(self, x):
        h = self.act(self.up(x))
        if self.spoil is not None and torch.compiler.is_exporting():
            h = self.spoil(h)
        return self.down(h), self.down(2 * h)


@pytest.fixture
def x():
    torch.manual_seed(0)
    return torch.randn(4, 8)


def test_every_output_of_every_call_is_compared(x, tmp_path):
    for _ in range(2):  # the second time with eager's values from the disk
        found = compare_modules(Twice().eval(), (x,), mesh=MESH, cache=tmp_path)
        names = [row.name for row in found.rows]
        assert names == ["up", "act", "down", "down#2", "the_model output 0", "the_model output 1"]
        assert found.is_close
        assert all(row.correlation > 0.99999 and row.relative < 1e-5 for row in found.rows)
        assert all(Path(__file__).name in row.line for row in found.rows)
    assert len([*tmp_path.iterdir()]) == 2  # other weights, other values


def test_stored_values_are_used(x, tmp_path):
    model = Twice().eval()
    compare_modules(model, (x,), cache=tmp_path)
    (file,) = tmp_path.iterdir()
    with np.load(file) as stored:
        held = {name: stored[name] for name in stored.files}
    first = next(name for name in held if name.startswith("up"))
    np.savez(file, **(held | {first: held[first] + 1}))
    assert compare_modules(model, (x,), cache=tmp_path).first_wrong.name == "up"


def test_the_first_wrong_and_the_first_nonfinite_value_are_named(x):
    found = compare_modules(Twice(lambda h: h.flip(-1)).eval(), (x,), mesh=MESH)
    assert [row.is_close for row in found.rows[:2]] == [True, True]
    wrong = found.first_wrong
    assert (wrong.name, wrong.kind) == ("down", "Linear")
    assert wrong.wrong is not None and len(wrong.wrong.index) == 2
    assert found.first_nonfinite is None
    found = compare_modules(Twice(lambda h: h / 0).eval(), (x,), mesh=MESH)
    assert found.first_nonfinite.name == "down"
    assert not np.isfinite(found.first_nonfinite.nonfinite.given)


class Spoiled(torch.nn.Module):
    """Infinities and NaN, and one element that is off when it is traced."""

    def forward(self, x):
        made = x * torch.tensor([float("inf"), float("nan"), *[1.0] * 6])
        off = torch.tensor([0.0, 0, 0, 9, 0, 0, 0, 0])
        return made + off if torch.compiler.is_exporting() else made


def test_the_same_nonfinite_values_are_right(x):
    found = compare_modules(Spoiled().eval(), (x,), mesh=MESH)
    assert found.first_wrong.wrong.index == (0, 3) and found.first_nonfinite is None


def test_exempt_modules_may_differ(x):
    spoiled = Twice(lambda h: h.flip(-1)).eval()
    required = RequiredCorrelation(0.9, {"down*": "known", "the_model": "made of it"})
    found = compare_modules(spoiled, (x,), required=required)
    assert found.is_close
    assert not found.rows[2].is_close and found.rows[2].exempt == "known"


def test_requirements_of_a_file(tmp_path):
    file = tmp_path / "required.json"
    file.write_text('{"Llama": {"llvm": {"correlation": 0.99, "exempt": {"a.*": "bf16"}}}}')
    found = read_required(file, "Llama", "llvm")
    assert (found.correlation, found.reason("a.0"), found.reason("b")) == (0.99, "bf16", "")
    for model, target in (("Bert", "llvm"), ("Llama", "numpy")):
        with pytest.raises(WeftError, match="requires nothing of the"):
            read_required(file, model, target)
    for text in ('{"L": {"llvm": {"exempt": {"a": ""}}}}', '{"L": {"llvm": {"correlation": 2}}}',
                 '{"L": {"llvm": 1}}', "no json"):  # fmt: skip
        file.write_text(text)
        with pytest.raises(WeftError):
            read_required(file, "L", "llvm")


SCRIPT = """
import torch
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh()).eval()
model_inputs = (torch.ones(4, 8),)
"""


def test_a_model_of_a_script(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("net.py").write_text(SCRIPT)
    assert main(["compare", "net.py:model", "--mesh", "data=2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["module"] for row in found["modules"]] == ["0", "1", "the_model"]
    assert main(["compare", "net.py:nothing"]) == 1
    assert "defines no nothing" in capsys.readouterr().err
