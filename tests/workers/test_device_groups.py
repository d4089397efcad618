"""Collectives whose operands stay in PyTorch's memory: gloo here, as NCCL in that of GPUs."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
import pytest

from tests.run.collectives import KINDS, Case, check, lockstep
from tests.run.device_target import TorchTarget
from tests.workers.gloo_processes import GlooProcesses
from weft.array.tensor_stack import TensorStack, can_combine, is_tensor_type
from weft.array.torch_memory import torch_dtype
from weft.executable.process import Exchange, ProcessCollective
from weft.ir.types import DTYPES
from weft.mesh import Axis, Mesh
from weft.pipeline import local_program
from weft.workers.cluster import Cluster
from weft.workers.coordination import CoordinationClient
from weft.workers.device_groups import DeviceGroups
from weft.workers.gloo import tcp_store
from weft.workers.member import WorkerRank

torch = pytest.importorskip("torch")


@pytest.fixture(autouse=True)
def on_tensors() -> Iterator[None]:
    """Programs of these tests are compiled for kernels on tensors."""
    defaults = local_program.__kwdefaults__
    before, defaults["target"] = defaults["target"], TorchTarget()
    yield
    defaults["target"] = before


class Counted(GlooProcesses):
    """Workers that must exchange tensors, and nothing through the host."""

    def run(self, pieces):
        before = [sum(one.wire.sent.values()) for one in self.clusters]
        made = super().run(pieces)
        assert [sum(one.wire.sent.values()) for one in self.clusters] == before
        return made


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("way", ["plain", "asynchronous"])
def test_every_collective(kind: str, way: str, clusters: list[Cluster]):
    mesh, axes = Mesh(x=2, y=2), (Axis("y"), Axis("x"))
    columns = 4096 if kind == "all_reduce add" else 16  # in two rounds
    case = Case(kind, mesh, axes, (Axis("x"), Axis("y")), way, columns=columns)
    check(case, [], partial(Counted, clusters=clusters))


@pytest.mark.parametrize("kind", KINDS)
def test_two_devices_a_worker(kind: str, clusters: list[Cluster]):
    """Groups of one axis are apart, with a process group each."""
    case = Case(kind, Mesh(x=2, y=4), (Axis("y"),), (Axis("x"), Axis("y")), dtype="f32", count=2)
    if kind in ("slice", "index"):
        case.count = 1
    check(case, [Axis("y", 2, 2)], partial(Counted, clusters=clusters))


@pytest.mark.parametrize("dtype", sorted(DTYPES))
def test_every_dtype(dtype: str, clusters: list[Cluster]):
    """What PyTorch has no tensors of, or does not combine, goes through the host."""
    kinds = ("all_gather", "all_reduce add", "all_reduce max", "reduce_scatter add")
    for kind in kinds if dtype == "f8E8M0FNU" else ("permute", *kinds):  # which has no zero
        case = Case(kind, Mesh(x=2), (Axis("x"),), (Axis("x"),), dtype=dtype)
        check(case, [], partial(GlooProcesses, clusters=clusters))


def test_groups_are_made_once(clusters: list[Cluster]):
    case = Case("all_gather", Mesh(x=2), (Axis("x"),), (Axis("x"),))
    check(case, [], partial(Counted, clusters=clusters))
    made = [dict(one.wire.devices.made) for one in clusters[:2]]
    check(case, [], partial(Counted, clusters=clusters))
    assert made == [dict(one.wire.devices.made) for one in clusters[:2]]
    assert ("gloo", (0, 1)) in made[0]


def test_types_and_combiners():
    assert is_tensor_type(np.dtype(np.float32)) and is_tensor_type(DTYPES["bf16"].numpy)
    assert not is_tensor_type(DTYPES["i4"].numpy) and not is_tensor_type(DTYPES["f8E3M4"].numpy)
    assert can_combine(np.add, np.dtype(np.uint32))
    assert not can_combine(np.maximum, np.dtype(np.uint32)) and not can_combine(None, np.dtype(int))


@pytest.mark.parametrize("dtype", ["f32", "f16", "ui32", "complex<f32>"])
def test_equal_values_are_multiplied(dtype: str, clusters: list[Cluster]):
    """Those of a worker's own devices, which are stored once."""
    axes = (Axis("x"), Axis("y"))
    case = Case("all_reduce add", Mesh(x=2, y=2), axes, (Axis("x"),), dtype=dtype)
    module, pieces = case.module(), case.pieces()
    (found,) = Counted(module, [Axis("y")], clusters).run(pieces)
    np.testing.assert_array_equal(found, *lockstep(module, pieces))


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_a_group_of_one_exchanges_with_itself(device: str):
    """Of every element type; NCCL works on its own stream, while others of the device go on."""
    me = WorkerRank(0, 1, "127.0.0.1", 0, 0, 1, "a test")
    store = tcp_store("127.0.0.1", 0, 1, 10.0, serves=True)
    groups = DeviceGroups(me, CoordinationClient(store, me, 10.0), lambda: store, 10.0)
    place = torch.device(device, 0) if device == "cuda" else torch.device(device)
    assert groups.reaches(place)
    module = Case("all_gather", Mesh(x=2), (Axis("x"),)).module()
    node = next(n for n in module.function("main").body.nodes if n.op.collective)
    ours = ProcessCollective(0, node, None, [(0,)], {0: (0,)})
    kinds = [d.numpy for _, d in sorted(DTYPES.items()) if is_tensor_type(d.numpy)]
    values = [
        torch.arange(33, device=place).remainder(2).reshape(3, 11).to(torch_dtype(dtype))
        for dtype in kinds
    ]
    sent = {0: tuple([TensorStack(value) for value in values])}
    exchange = Exchange(ours, sent, {0: [((3, 11), dtype) for dtype in kinds]}, [0], place)
    for _ in range(3):
        started = groups.start(exchange, {0: 0})
        busy = torch.ones(512, 512, device=place) @ torch.ones(512, 512, device=place)
        (found,) = groups.wait(started, {0: 0}).values()
        assert float(busy[0, 0]) == 512
        for theirs, mine in zip(found, values, strict=True):
            assert theirs.tensor.dtype == mine.dtype and theirs.tensor.device == mine.device
            assert torch.equal(theirs.tensor.view(torch.uint8), mine.view(torch.uint8))
    assert [*groups.made] == [("nccl" if device == "cuda" else "gloo", (0,))]
