"""DTensor placements of a parallelized module as a plan for the module as it was."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

import weft  # noqa: E402
from weft import Mesh  # noqa: E402

MESH = Mesh(data=2, model=4)


class Mlp(nn.Module):
    """Columns, then rows."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Up and down."""
        return self.down(torch.relu(self.up(x)))


@pytest.fixture(scope="module")
def devices() -> Iterator[Any]:
    """PyTorch's device mesh of eight processes that do not exist."""
    from torch import distributed
    from torch.distributed.device_mesh import init_device_mesh
    from torch.testing._internal.distributed.fake_pg import FakeStore

    distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=8)
    try:
        yield lambda names: init_device_mesh("cpu", (2, 4), mesh_dim_names=names)
    finally:
        distributed.destroy_process_group()


def parallelized(net: Any, mesh: Any) -> Any:
    """A copy whose parameters are DTensors of two dims."""
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    made, along = copy.deepcopy(net), mesh[mesh.mesh_dim_names[1]]
    parallelize_module(made, along, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    return fully_shard(made, mesh=mesh[mesh.mesh_dim_names[0]])


def test_placements_are_a_plan(devices: Any) -> None:
    """FSDP's shards are of tensor parallelism's, and gathered where they are used."""
    torch.manual_seed(0)
    net = Mlp()
    plan = parallelized(net, devices(("data", "model")))
    twin = copy.deepcopy(net)
    step = weft.train_step(
        net, F.mse_loss, torch.optim.SGD(net.parameters(), lr=0.1), mesh=MESH, plan=plan
    )
    x, y = torch.randn(8, 16), torch.randn(8, 16)
    loss = F.mse_loss(twin(x), y)
    loss.backward()
    torch.testing.assert_close(step(x, y), loss.detach())
    for ours, theirs in zip(net.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs - 0.1 * theirs.grad)
    taken = {a.name: str(a.sharding) for a in step.signature.arguments}
    assert '[{"model", "data"}' in taken["up.weight"]
    assert '{"data"' in taken["down.weight"] and '{"model"}]' in taken["down.weight"]
    assert '[{"data"}' in taken["x"]
    rows = {(r.name.rpartition(".")[2], r.over) for r in step.collectives()}
    assert ("all_gather", "data") in rows and ("reduce_scatter", "data") in rows
    assert ("all_gather", "model") not in rows


def test_refusals(devices: Any) -> None:
    net, x = Mlp(), torch.randn(8, 16)
    with pytest.raises(weft.WeftError, match="no parameter of the Mlp is a DTensor"):
        weft.compile(net, x, mesh=MESH, plan=net)
    sharded = parallelized(net, devices(("data", "model")))
    with pytest.raises(weft.WeftError, match=r"up\.weight is a DTensor"):
        weft.compile(sharded, x, mesh=MESH)
    with pytest.raises(weft.WeftError, match="needs a mesh"):
        weft.compile(net, x, plan=sharded)
    others = parallelized(net, devices(("rows", "columns")))
    with pytest.raises(weft.WeftError, match="columns|rows"):
        weft.compile(net, x, mesh=MESH, plan=others)
