"""PyTorch modules as users write them, each with one mistake in its plan, and without it."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

from tests.explain.mistakes import MESH, Mistake, Sharded
from weft import Mesh, P

WIDTH, HEADS = 2048, 16


def linear(inputs: int, outputs: int) -> nn.Linear:
    return nn.Linear(inputs, outputs, bias=False, device="meta", dtype=torch.bfloat16)


def tensor(*shape: int) -> torch.Tensor:
    return torch.empty(shape, device="meta", dtype=torch.bfloat16)


class Perceptron(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = linear(WIDTH, 4 * WIDTH), linear(4 * WIDTH, WIDTH)

    def forward(self, x: Any) -> Any:
        return self.down(torch.relu(self.up(x)))


class Attention(nn.Module):
    def __init__(self, groups: int) -> None:
        super().__init__()
        self.groups, size = groups, WIDTH // HEADS
        self.q, self.o = linear(WIDTH, WIDTH), linear(WIDTH, WIDTH)
        self.k, self.v = linear(WIDTH, groups * size), linear(WIDTH, groups * size)

    def forward(self, x: Any) -> Any:
        b, s, _ = x.shape
        q = self.q(x).view(b, s, HEADS, -1).transpose(1, 2)
        k = self.k(x).view(b, s, self.groups, -1).transpose(1, 2)
        v = self.v(x).view(b, s, self.groups, -1).transpose(1, 2)
        k = k.repeat_interleave(HEADS // self.groups, 1)
        v = v.repeat_interleave(HEADS // self.groups, 1)
        out = scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o(out.transpose(1, 2).reshape(b, s, -1))


def transposed_linears(wrong: bool) -> Sharded:
    """Weights are split as if they were kept inputs first."""
    rows, columns = (P("model", None), P(None, "model"))[:: -1 if wrong else 1]
    plan = {"up.weight": rows, "down.weight": columns, "x": P("data")}
    return Sharded(Perceptron(), (tensor(16384, WIDTH),), MESH, None, P("data"), plan=plan)


def few_key_heads(wrong: bool) -> Sharded:
    """Two heads of keys and values for an axis of eight."""
    kept = P("model") if wrong else P()
    plan = {"q.*": P("model"), "k.*": kept, "v.*": kept, "o.*": P(None, "model"), "x": P()}
    return Sharded(Attention(2), (tensor(8, 2048, WIDTH),), Mesh(model=8), plan=plan)


def whole_batch(wrong: bool) -> Sharded:
    """The layers are split, and the batch was forgotten."""
    plan = {"q.*": P("model"), "k.*": P("model"), "v.*": P("model"), "o.*": P(None, "model")}
    batch = {} if wrong else {"x": P("data")}
    return Sharded(Attention(8), (tensor(8, 2048, WIDTH),), MESH, plan=plan | batch)


MISTAKES = (
    Mistake(transposed_linears, 'result 0: P(("data", "model"), None)', "self.down(torch.relu"),
    Mistake(few_key_heads, "do not divide dim 2 of size 2", "view(b, s, self.groups"),
    Mistake(whole_batch, '"x": P(("data", "model"), None, None)', "self.o("),
)
