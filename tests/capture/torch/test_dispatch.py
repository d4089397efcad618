"""Expert parallelism: tokens are sent to the devices of their experts, each once, and come back."""

from __future__ import annotations

import copy

import pytest

import weft
from tests.capture.torch.models import torch
from tests.tolerance import assert_close
from weft import Mesh

RATE = 1e6  # so that a step's change is the gradient, whatever the parameter was


class Stack(torch.nn.Module):
    """A stack of experts, which says about itself what those of transformers do."""

    has_gate, has_bias, is_transposed = True, True, True

    def __init__(self, experts=8, width=6, hidden=5):
        super().__init__()
        self.num_experts = experts
        for name, (rows, columns) in (("gate_up", (width, 2 * hidden)), ("down", (hidden, width))):
            matrices = torch.nn.Parameter(torch.randn(experts, rows, columns))
            setattr(self, f"{name}_proj", matrices)
            bias = torch.nn.Parameter(torch.randn(experts, columns))
            setattr(self, f"{name}_proj_bias", bias)

    def _apply_gate(self, made):
        gate, up = made.chunk(2, -1)
        return torch.tanh(gate) * up

    def forward(self, x, chosen, weights):
        made = torch.einsum("th,ehn->ten", x, self.gate_up_proj) + self.gate_up_proj_bias
        made = torch.einsum("ten,enh->teh", self._apply_gate(made), self.down_proj)
        made = made + self.down_proj_bias
        return (made.gather(1, chosen[..., None].expand(-1, -1, 6)) * weights[..., None]).sum(1)


class Mixture(torch.nn.Module):
    """A router of two experts for each token, and the experts."""

    def __init__(self):
        super().__init__()
        self.router = torch.nn.Parameter(torch.randn(6, 8))
        self.experts = Stack()

    def forward(self, x, bias):
        flat = x.reshape(-1, 6)
        weights, chosen = (torch.softmax(flat @ self.router, -1) + bias).topk(2, -1)
        return self.experts(flat, chosen, weights).view(x.shape)


def kinds(compiled):
    """How often a program runs each kind of collective."""
    found = {}
    for row in compiled.collectives():
        found[row.name] = found.get(row.name, 0) + row.count
    return found


def test_tokens_are_dispatched_wherever_they_go():
    torch.manual_seed(0)
    model, x = Mixture(), torch.randn(8, 3, 6)
    spread, crowded = torch.zeros(8, 8), torch.zeros(8, 8)
    crowded[:, 2:4] = 9.0  # both experts of all tokens on one device: no token is dropped
    given = {"x": x, "bias": spread.repeat(3, 1)}
    compiled = weft.compile(model, **given, mesh=Mesh(data=2, ep=4), plan="ep")
    assert kinds(compiled) == {"stablehlo.all_gather": 1, "weft.ragged_all_to_all": 2}
    for bias in (spread, crowded):
        given["bias"] = bias.repeat(3, 1)
        assert_close(compiled(**given).numpy(), model(**given).detach().numpy(), 64)


def kept(chosen, capacity, groups=2, devices=4):
    """The choices that devices have room for, by their definition: in the order of tokens."""
    made = torch.zeros(chosen.shape, dtype=torch.bool)
    tokens = chosen.shape[0] // groups
    room = -(-int(capacity * tokens * chosen.shape[1]) // devices)
    for group in range(groups):
        counts = [0] * devices
        for token in range(group * tokens, (group + 1) * tokens):
            for n, expert in enumerate(chosen[token].tolist()):
                counts[expert // (8 // devices)] += 1
                made[token, n] = counts[expert // (8 // devices)] <= room
    return made


def test_tokens_are_dropped_only_where_a_capacity_is_chosen():
    torch.manual_seed(0)
    model, x = Mixture(), torch.randn(8, 3, 6)
    given = {"x": x, "bias": torch.zeros(24, 8)}
    given["bias"][:, 2:4] = 9.0  # all choices are those of one device
    mesh = Mesh(data=2, ep=4)
    whole = weft.compile(model, **given, mesh=mesh, plan="ep")
    roomy, tight = (
        weft.compile(model, **given, mesh=mesh, plan="ep", capacity=c) for c in (4, 1.5)
    )
    assert_close(roomy(**given).numpy(), model(**given).detach().numpy(), 64)
    assert tight.memory().temporaries < whole.memory().temporaries
    flat = x.reshape(-1, 6)
    weights, chosen = (torch.softmax(flat @ model.router, -1) + given["bias"]).topk(2, -1)
    weights = weights * kept(chosen, 1.5)
    assert 0 < int((weights == 0).sum()) < weights.numel()
    expected = model.experts(flat, chosen, weights).view(x.shape).detach()
    assert_close(tight(**given).numpy(), expected.numpy(), 64)
    with pytest.raises(weft.WeftError, match="no experts take tokens of other devices"):
        weft.compile(model, **given, capacity=1.0)
    with pytest.raises(weft.WeftError, match="no factor of an even share"):
        weft.compile(model, **given, capacity=0)


def test_tokens_stay_where_they_go_to_all_devices_anyway():
    torch.manual_seed(0)
    model, given = Mixture(), {"x": torch.randn(4, 2, 6), "bias": torch.zeros(8, 8)}
    compiled = weft.compile(model, **given, mesh=Mesh(ep=2), plan="ep")
    assert "weft.ragged_all_to_all" not in kinds(compiled)
    assert_close(compiled(**given).numpy(), model(**given).detach().numpy(), 64)


class Logits(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, ids):
        return self.model(ids, use_cache=False).logits


NAMES = ("deepseek_v3", "mixtral", "qwen3_moe", "gpt_oss", "glm4_moe")


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n == NAMES[0] else pytest.mark.long) for n in NAMES]
)
def test_a_mixture_of_transformers_is_dispatched_forward_and_backward(name):
    pytest.importorskip("transformers")
    from weft.zoo import ZOO

    module, _ = ZOO[name].make()
    model = Logits(module.train())
    other, ids = copy.deepcopy(model), torch.randint(0, 50, (8, 3))
    rate = torch.optim.SGD(model.parameters(), lr=RATE)
    step = weft.train_step(model, squares, rate, mesh=Mesh(ep=8), plan="ep")
    loss = step(ids, torch.tensor(0.5))
    wanted = squares(other(ids), 0.5)
    wanted.backward()
    assert_close(loss.detach().numpy(), wanted.detach().numpy(), 1024)
    for mine, theirs in zip(model.parameters(), other.parameters(), strict=True):
        made = (theirs.detach() - mine.detach()) / RATE
        assert_close(made.numpy(), theirs.grad.numpy(), 1024, least=1e-6)
    layers = sum(hasattr(each, "num_experts") and hasattr(each, "has_gate")
                 for each in model.modules())  # fmt: skip
    assert kinds(step)["weft.ragged_all_to_all"] == 4 * layers


def squares(made, wanted):
    """A loss."""
    return ((made - wanted) ** 2).mean()


@pytest.mark.long
def test_a_layer_of_deepseek_v3s_own_size_sends_less_than_its_tokens():
    transformers = pytest.importorskip("transformers")
    config = transformers.DeepseekV3Config(
        num_hidden_layers=2, first_k_dense_replace=1, use_cache=False
    )
    with torch.device("meta"):
        model = transformers.DeepseekV3ForCausalLM(config).to(torch.bfloat16).eval()
        ids = torch.zeros(64, 512, dtype=torch.int64)
    compiled = weft.compile(model, input_ids=ids, mesh=Mesh(ep=64), plan="ep")
    sent = sum(row.bytes * row.count for row in compiled.collectives())
    gathered = 2 * ids.numel() * config.hidden_size * 63 / 64  # every token on every device, once
    assert sent < 0.4 * gathered
