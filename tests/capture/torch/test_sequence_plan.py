"""Sequence parallelism: `tp+sp` against eager mode, and what it sends and keeps."""

from __future__ import annotations

import copy
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn, optim  # noqa: E402
from torch.nn import functional as F  # noqa: E402

import weft  # noqa: E402
from weft import Mesh, P  # noqa: E402

MESH = Mesh(data=2, tp=4)
WIDTH, HEADS, WORDS = 16, 4, 32


class Layer(nn.Module):
    """Attention and a gated MLP, as in Llama."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.after = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.q_proj, self.k_proj = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(2))
        self.v_proj, self.o_proj = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.gate, self.up = (nn.Linear(WIDTH, 4 * WIDTH, bias=False) for _ in range(2))
        self.down = nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Two blocks, each around a residual."""
        batch, length, _ = x.shape
        h = self.before(x)
        projected = [layer(h) for layer in (self.q_proj, self.k_proj, self.v_proj)]
        q, k, v = (p.view(batch, length, HEADS, -1).transpose(1, 2) for p in projected)
        made = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o_proj(made.transpose(1, 2).reshape(batch, length, WIDTH))
        h = self.after(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Llama(nn.Module):
    """One layer between an embedding and logits."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.layer = nn.Embedding(WORDS, WIDTH), Layer()
        self.norm, self.lm_head = nn.RMSNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits."""
        return self.lm_head(self.norm(self.layer(self.embed(tokens))))


def loss_of(logits: Any, targets: Any) -> Any:
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def batch(length: int) -> tuple[Any, Any]:
    torch.manual_seed(1)
    return tuple(torch.randint(0, WORDS, (4, length)) for _ in range(2))


def test_activations_are_gathered_and_scattered() -> None:
    """No sum of whole activations is sent, and less is kept than without."""
    torch.manual_seed(0)
    net, (tokens, _) = Llama().eval(), batch(64)
    plain = weft.compile(net, tokens, mesh=MESH, plan="tp")
    made = weft.compile(net, tokens, mesh=MESH, plan="tp+sp")
    torch.testing.assert_close(made(tokens), net(tokens).detach(), rtol=1e-4, atol=1e-5)
    names = {row.name.rpartition(".")[2] for row in made.collectives()}
    assert "all_reduce" not in names and {"all_gather", "reduce_scatter"} <= names
    assert made.memory().temporaries < plain.memory().temporaries


@pytest.mark.parametrize(("plan", "length"), [("tp+sp", 8), ("fsdp+tp+sp", 8), ("tp+sp", 7)])
def test_training_is_eagers(plan: str, length: int) -> None:
    """Gradients, too; a sequence that does not divide stays whole."""
    torch.manual_seed(0)
    net, (tokens, targets) = Llama(), batch(length)
    twin = copy.deepcopy(net)
    sgd = optim.SGD(net.parameters(), lr=0.1)
    step = weft.train_step(net, loss_of, sgd, mesh=MESH, plan=plan, target="numpy")
    expected = loss_of(twin(tokens), targets)
    expected.backward()
    torch.testing.assert_close(step(tokens, targets), expected.detach(), rtol=1e-4, atol=1e-5)
    for ours, theirs in zip(net.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs - 0.1 * theirs.grad, rtol=1e-4, atol=1e-5)
    split = '[{"data"}, {"tp"}, {}]'
    assert (split in step.text("captured")) == (length % 4 == 0)


def test_tensor_parallel_training_sends_sums_alone() -> None:
    """Two a layer and pass, as a person would write them; and those of the logits."""
    torch.manual_seed(0)
    net, (tokens, targets) = Llama(), batch(8)
    sgd = optim.SGD(net.parameters(), lr=0.1)
    step = weft.train_step(net, loss_of, sgd, mesh=MESH, plan="tp", target="numpy")
    step.prepare(tokens, targets)
    sent = [row for row in step.collectives() if row.over == "tp"]
    activations = 2 * 2 * 8 * WIDTH * 4 * 3 / 4  # what a ring sends for the sum of a device's
    large = [row for row in sent if row.bytes >= activations]
    assert {row.name for row in large} == {"stablehlo.all_reduce"}
    assert sum(row.count for row in large) == 2 + 2 + 1


def test_without_hooks_afterwards() -> None:
    net, (tokens, _) = Llama(), batch(8)
    weft.compile(net, tokens, mesh=MESH, plan="tp+sp", target="numpy")
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in net.modules())
    with pytest.raises(weft.WeftError, match="finds no axis for tp"):
        weft.compile(net, tokens, mesh=Mesh(data=2), plan="tp+sp")


def test_narrow_attention_over_a_split_sequence() -> None:
    """Keys and values that are converted outside of the loop over the devices of the sequence."""
    torch.manual_seed(0)
    layer, x = Layer().to(torch.bfloat16).eval(), torch.randn(2, 8, WIDTH, dtype=torch.bfloat16)
    split = {"[qkv]_proj.*": P("tp"), "o_proj.weight": P(None, "tp"), "x": P(None, "data")}
    compiled = weft.compile(layer, x, mesh=MESH, plan=split)
    torch.testing.assert_close(compiled(x), layer(x), atol=0.05, rtol=0.05)
