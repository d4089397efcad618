"""Fused layers under tensor parallelism: every part of them is split, in inference and training."""

from __future__ import annotations

import copy
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn, optim  # noqa: E402
from torch.nn import functional as F  # noqa: E402

import weft  # noqa: E402
from tests.capture.torch.test_training import eager_step  # noqa: E402
from weft import Mesh, P  # noqa: E402


class Conv1D(nn.Module):
    """A layer with its weight as (in, out), by the name and the form of GPT-2's."""

    def __init__(self, width: int, out: int) -> None:
        super().__init__()
        self.weight, self.bias = (
            nn.Parameter(torch.randn(width, out)),
            nn.Parameter(torch.randn(out)),
        )

    def forward(self, x):
        return torch.addmm(self.bias, x.view(-1, x.shape[-1]), self.weight).view(*x.shape[:-1], -1)


class Fused(nn.Module):
    """One layer for queries, keys and values of unequal width, and one for gates and the rest."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.o_proj = nn.Linear(16, 32), nn.Linear(16, 16)
        self.c_attn, self.c_proj = Conv1D(16, 48), Conv1D(16, 16)
        self.gate_up_proj, self.down = nn.Linear(16, 48, bias=False), nn.Linear(24, 16)

    def forward(self, x):
        def heads(y):
            return y.unflatten(-1, (-1, 2)).transpose(1, 2)

        q, k, v = self.qkv(x).split((16, 8, 8), -1)
        attend = nn.functional.scaled_dot_product_attention
        made = attend(heads(q), heads(k), heads(v), enable_gqa=True)
        x = x + self.o_proj(made.transpose(1, 2).flatten(2))
        made = attend(*[heads(y) for y in self.c_attn(x).chunk(3, -1)], is_causal=True)
        x = x + self.c_proj(made.transpose(1, 2).flatten(2))
        gate, up = self.gate_up_proj(x).chunk(2, -1)
        return x + self.down(torch.sigmoid(gate) * up)


class Viewed(nn.Module):
    """Queries, keys and values as a dim of a view."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out_proj = nn.Linear(16, 48), nn.Linear(16, 16)

    def forward(self, x):
        q, k, v = self.qkv(x).view(*x.shape[:2], 3, 8, 2).permute(2, 0, 3, 1, 4)
        made = F.scaled_dot_product_attention(q, k, v)
        return x + self.out_proj(made.transpose(1, 2).flatten(2))


def kinds(compiled: Any) -> dict[str, int]:
    """The collectives of a program by their kind."""
    counts: Counter[str] = Counter()
    for row in compiled.collectives():
        counts[row.name] += row.count
    return dict(counts)


def names_in_parts(compiled: Any) -> set[str]:
    """The tensors of which a program takes parts."""
    leaves = compiled._last.captured.arguments
    return {leaf.name.split("[")[0] for leaf in leaves if leaf.part}


KINDS_OF_FUSED = {
    "tp": {"stablehlo.all_reduce": 3},
    "tp+sp": {"stablehlo.all_gather": 2, "stablehlo.reduce_scatter": 3},
}


@pytest.mark.parametrize("plan", KINDS_OF_FUSED)
def test_parts_of_fused_layers_are_split_each(plan) -> None:
    """Collectives are those of layers that are not fused: a sum after each closing one."""
    torch.manual_seed(0)
    model, x = Fused().eval(), torch.randn(2, 8, 16)
    compiled = weft.compile(model, x, mesh=Mesh(tp=4), plan=plan)
    assert kinds(compiled) == KINDS_OF_FUSED[plan]
    for _ in range(2):
        torch.testing.assert_close(compiled(x), model(x).detach(), rtol=1e-4, atol=1e-4)
        with torch.no_grad():
            model.qkv.weight.mul_(1.5)  # its parts are views of its memory
    shapes = {leaf.name: leaf.shape for leaf in compiled._last.captured.arguments}
    assert shapes["qkv.weight[0:16]"] == (16, 16) and shapes["c_attn.weight[:, 16:32]"] == (16, 16)
    assert compiled.memory().arguments < sum(p.nbytes for p in model.parameters()) / 3 + x.nbytes


class Squares(nn.Module):
    """A matrix with parts along both of its dims."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(8, 8))

    def forward(self, x):
        columns, rows = x @ self.w, self.w @ x
        return columns[:, :4] * columns[:, 4:], rows[:4] + rows[4:]


class ReadWhole(nn.Module):
    """A fused layer, and one whose weight is read whole, too."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.gate_up = nn.Linear(8, 24), nn.Linear(8, 16)

    def forward(self, x):
        (q, k, v), (gate, up) = self.qkv(x).chunk(3, -1), self.gate_up(x).chunk(2, -1)
        return q * k + v, gate * up, self.gate_up.weight.sum(1)


class Chained(nn.Module):
    """A fused layer whose whole output another one takes."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 16, bias=False), nn.Linear(16, 16, bias=False)

    def forward(self, x):
        made = self.first(x)
        (a, b), (c, d) = made.chunk(2, -1), self.second(torch.tanh(made)).chunk(2, -1)
        return a * b, c * d


@pytest.mark.parametrize(
    ("cls", "fused"),
    [
        (Squares, set()),
        (ReadWhole, {"qkv.weight", "qkv.bias"}),
        (Chained, {"second.weight"}),
    ],
)
def test_weights_that_are_read_whole_stay_whole(cls, fused) -> None:
    torch.manual_seed(0)
    model, x = cls(), torch.randn(8, 8)
    plans = {"w": P("a", "b"), "x": None}
    compiled = weft.compile(
        model, x, mesh=Mesh(a=2, b=2), plan=lambda name, shape: plans.get(name, P("a"))
    )
    for made, expected in zip(compiled(x), model(x), strict=True):
        torch.testing.assert_close(made, expected.detach())
    assert names_in_parts(compiled) == fused


def sgd(net: Any) -> Any:
    return optim.SGD(net.parameters(), lr=0.1, momentum=0.9)


TRAINING: dict[str, tuple[Any, dict[str, Any]]] = {
    "momentum": (sgd, {}),
    "four parts, clipped": (
        lambda net: optim.AdamW(net.parameters(), lr=1e-2),
        {"accumulate": 4, "clip": 0.1},
    ),
    "bf16": (sgd, {"precision": torch.bfloat16}),
    "adafactor": (lambda net: optim.Adafactor(net.parameters(), lr=1e-2), {}),
}


@pytest.mark.parametrize("name", TRAINING)
def test_fused_layers_are_trained_in_parts(name: str, tmp_path: Path) -> None:
    """Steps are eager's, in place; a layer is summed once forward and once backward."""
    torch.manual_seed(0)
    make, options = TRAINING[name]
    # In f64: the gradient of a bias of keys is 0 but for rounding errors, which Adam magnifies.
    net, (x, y) = Fused().double(), torch.randn(2, 4, 8, 16).double()
    with torch.no_grad():
        for p in net.parameters():
            p.mul_(0.3)
    twin = copy.deepcopy(net)
    ours, theirs = make(net), make(twin)
    step = weft.train_step(net, F.mse_loss, ours, mesh=Mesh(tp=4), target="numpy", **options)
    alone = weft.train_step(twin, F.mse_loss, theirs, target="numpy", **options)
    held = [(p, p.data_ptr(), p._version) for p in net.parameters()]
    parts, clip = options.get("accumulate", 1), options.get("clip")
    is_narrow = "precision" in options  # rounded as on one device, but for sums
    tolerance = 1e-2 if is_narrow else 1e-6
    for _ in range(3):
        expected = (
            alone(x, y) if is_narrow else eager_step(twin, theirs, x, y, parts=parts, clip=clip)
        )
        assert float(step(x, y)) == pytest.approx(float(expected), rel=tolerance)
    for (name_, value), mine in zip(twin.named_parameters(), net.parameters(), strict=True):
        if name == "adafactor" and name_ in ("qkv.bias", "c_attn.bias"):
            continue  # it scales any gradient to its rate
        torch.testing.assert_close(mine, value, rtol=tolerance, atol=tolerance, msg=name_)
    assert all(p.data_ptr() == place and p._version > version for p, place, version in held)
    assert names_in_parts(step) > {
        "qkv.weight", "qkv.bias", "c_attn.weight", "c_attn.bias", "gate_up_proj.weight"
    }  # fmt: skip
    if name == "momentum":
        # Of the first layer's input there is no gradient.
        assert kinds(step) == {"stablehlo.all_reduce": 3 + 2}
        state = 2 * sum(p.nbytes for p in net.parameters())
        assert step.memory().arguments < state / 3 + x.nbytes + y.nbytes
        weft.save_state(step, tmp_path)  # of whole tensors
        weft.load_state(tmp_path, again := Fused().double())
        torch.testing.assert_close(again.state_dict(), net.state_dict(), rtol=0, atol=0)


def test_parts_of_a_view_are_split_each() -> None:
    torch.manual_seed(0)
    net, (x, y) = Viewed(), torch.randn(2, 4, 8, 16)
    twin, mesh = copy.deepcopy(net), Mesh(tp=4)
    compiled = weft.compile(net, x, mesh=mesh, target="numpy")
    torch.testing.assert_close(compiled(x), net(x).detach())
    ours, theirs = sgd(net), sgd(twin)
    step = weft.train_step(net, F.mse_loss, ours, mesh=mesh, target="numpy", accumulate=4)
    for _ in range(2):
        expected = float(eager_step(twin, theirs, x, y, parts=4))
        assert float(step(x, y)) == pytest.approx(expected, rel=1e-5)
    for program, times in ((compiled, 1), (step, 4)):
        assert kinds(program) == {"stablehlo.all_reduce": times}
        assert names_in_parts(program) >= {"qkv.weight", "qkv.bias"}
