"""A program on workers that are threads, with the messages of processes between them."""

from __future__ import annotations

from collections.abc import Sequence

from tests.run.processes import Processes
from weft.emit.numpy import host_of
from weft.executable.process import Process
from weft.ir.module import Module
from weft.mesh import Axis
from weft.run import LocalProgram
from weft.workers.cluster import Cluster
from weft.workers.messages import Messages


class GlooProcesses(Processes):
    """Like processes in memory, but messages go through shared memory or over sockets."""

    def __init__(
        self, module: Module, stacked: Sequence[Axis], clusters: Sequence[Cluster]
    ) -> None:
        self.clusters = clusters
        super().__init__(module, stacked)

    def loaded(self, device: int) -> LocalProgram:
        devices = self.first.world.devices()
        owners = {int(devices[p]): n for n, places in enumerate(self.places) for p in places}
        transport = Messages(self.clusters[owners[device]].wire, owners)
        process = Process(device, transport)
        return LocalProgram(*self.read, host_of(process), self.first.target)
