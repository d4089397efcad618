"""What launched workers train: a small module, sharded over their devices, beside eager."""

from __future__ import annotations

import torch

import weft
from weft import Mesh


def model() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 8))


def main() -> None:
    ours, eager = model(), model()
    x, y = torch.randn(8, 16), torch.randn(8, 8)
    torch.testing.assert_close(weft.compile(ours, x, mesh=Mesh(data=4))(x), eager(x))
    optimizer = torch.optim.AdamW(eager.parameters(), lr=1e-2)
    step = weft.train_step(
        ours,
        lambda out, y: ((out - y) ** 2).mean(),
        torch.optim.AdamW(ours.parameters(), lr=1e-2),
        mesh=Mesh(data=4),
        plan="fsdp",
    )
    for _ in range(4):
        loss = ((eager(x) - y) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        torch.testing.assert_close(step(x, y), loss.detach())
    for mine, theirs in zip(ours.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs)
    print("trained")


if __name__ == "__main__":
    main()
