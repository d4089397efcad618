"""Which calls on tensors of the host are one native call: slower ways give the same numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import weft
from tests.capture.torch.models import F, nn, torch
from weft import Mesh, P
from weft.run.host_tensors import HostTensors


def inference(**how: Any) -> Callable[[], Any]:
    compiled, x = weft.compile(nn.Linear(6, 4), **how), torch.randn(8, 6)
    return lambda: compiled(x)


def training(**how: Any) -> Callable[[], Any]:
    net, x, y = nn.Linear(6, 4), torch.randn(8, 6), torch.randn(8, 4)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    step = weft.train_step(net, F.mse_loss, optimizer, **how)
    return lambda: step(x, y)


def drawing() -> Callable[[], Any]:
    compiled, x = weft.compile(lambda x: F.dropout(x, 0.5)), torch.randn(8, 6)
    return lambda: compiled(x)


CALLS = {
    "inference": (inference, True),
    "training": (training, True),
    "drawing": (drawing, True),
    "a mesh": (lambda: inference(mesh=Mesh(x=2), plan={"weight": P("x")}), False),
    "training on a mesh": (lambda: training(mesh=Mesh(x=2), plan={"weight": P("x")}), False),
}


@pytest.mark.parametrize("name", CALLS)
def test_brief_calls_are_native(name: str, monkeypatch: pytest.MonkeyPatch):
    made, is_native = CALLS[name]
    run, own, taken = made(), HostTensors.__call__, []
    monkeypatch.setattr(
        HostTensors, "__call__", lambda self, x: taken.append(own(self, x)) or taken[-1]
    )
    for _ in range(4):
        run()
    assert ([part is not None for part in taken[-2:]] == [True, True]) == is_native
