"""What workers train on a GPU: virtual devices in its memory, beside eager and a group of NCCL."""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist

import weft
from weft import Mesh


def model() -> torch.nn.Module:
    torch.manual_seed(0)
    layers = [torch.nn.Linear(64, 128), torch.nn.GELU(), torch.nn.Linear(128, 16)]
    return torch.nn.Sequential(*layers).cuda()


def main(backend: str, steps: int) -> None:
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.cuda.set_device(0)
    if backend != "none":
        dist.init_process_group(backend)
    ours, eager = model(), model()
    x, y = torch.randn(32, 64).cuda(), torch.randn(32, 16).cuda()
    optimizer = torch.optim.AdamW(eager.parameters(), lr=1e-3)
    step = weft.train_step(
        ours,
        lambda out, y: ((out - y) ** 2).mean(),
        torch.optim.AdamW(ours.parameters(), lr=1e-3),
        mesh=Mesh(data=4),
        plan="fsdp",
    )
    for _ in range(steps):
        loss = ((eager(x) - y) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        made = step(x, y)
        if backend == "nccl":  # the user's own collectives, between the runs of a program
            made = made.clone()
            dist.all_reduce(made)
            made /= dist.get_world_size()
        torch.testing.assert_close(made.cpu(), loss.detach().cpu(), rtol=2e-4, atol=1e-5)
    for mine, theirs in zip(ours.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(mine.cpu(), theirs.cpu(), rtol=2e-3, atol=1e-4)
    print(f"trained {steps} steps on {x.device}, loss {float(made):.5f}")
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
