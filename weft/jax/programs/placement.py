"""Where a program's devices are: in this process, or in several of `jax.distributed`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from functools import partial
from typing import TYPE_CHECKING, Any

from weft.errors import Unsupported
from weft.executable.process import Exchange, Peer, Process, ProcessCollective, Values
from weft.jax.buffers.formats import BufferFormat
from weft.jax.joining import the_cluster
from weft.jax.processes import JaxProcesses
from weft.jax.programs.options import PjrtOptions
from weft.mesh.owners import StackedAxes, owned_axes
from weft.pipeline import Program
from weft.records import dataclass
from weft.run import LocalProgram
from weft.workers.native_sums import PendingRuns

if TYPE_CHECKING:
    from weft.workers.messages import Kinds, Messages
    from weft.workers.native_sums import NativeRun


PENDING = PendingRuns.new()  # of programs over several processes


@dataclass(frozen=True, slots=True)
class CompileRequest:
    """JAX's compile request, besides the program."""

    replicas: int
    partitions: int
    devices: tuple[int, ...]  # device numbers by partition; empty if unassigned
    options: PjrtOptions


@dataclass(frozen=True, slots=True)
class Placement:
    """The axes whose devices are in this process, and its identity; both None if all are."""

    stacked: StackedAxes | None = None
    process: Process | None = None

    def agree_on(self, program: Program) -> None:
        """Compare the program with those of the other processes, when it first runs."""
        if self.process is not None:
            assert isinstance(self.process.transport, LateMessages), "made by placement"
            self.process.transport.digest = program.digest


@dataclass(eq=False)
class LateMessages:
    """The transport of one program, which its processes compare when it first runs.

    A program that only some processes compile makes no other process wait.
    """

    processes: JaxProcesses
    ranks: Mapping[Peer, int]  # the process of each partition
    digest: Callable[[], str] | None = None
    _messages: list[Messages] = field(default_factory=list)

    def begin_run(self, name: str, digest: str) -> None:
        """Join the others and agree on the program, once; count the step."""
        if not self._messages:
            from weft.workers.messages import Messages  # most processes are alone

            workers = the_cluster(self.processes)
            assert self.digest is not None, "the program is compiled"
            workers.coordination.agree(name, self.digest(), sorted({*self.ranks.values()}))
            self._messages.append(Messages(workers.wire, self.ranks))
        self._messages[0].begin_run(name, digest)

    def reaches(self, device: Any) -> bool:
        """JAX's buffers are in the host's memory."""
        return False

    @property
    def has_run(self) -> bool:
        """Whether the program has begun to run, so that its processes have agreed on it."""
        return bool(self._messages)

    def native_run(
        self,
        exchanges: Sequence[tuple[ProcessCollective, Sequence[Peer], Kinds]],
        short_run: int,
    ) -> NativeRun | None:
        """The exchanges of the program, which has run, by native code; None if it cannot be."""
        return self._messages[0].native_run(exchanges, PENDING, short_run)

    def start(self, exchange: Exchange) -> Any:
        """Start an exchange."""
        return self._messages[0].start(exchange)

    def wait(self, started: Any) -> Mapping[Peer, Values]:
        """Finish an exchange."""
        return self._messages[0].wait(started)


def placement(request: CompileRequest, processes: JaxProcesses) -> Placement:
    """Where the devices of a program are."""
    numbers = devices_of(request, processes)
    here = partitions_compiled(numbers, processes)
    if len(here) == len(numbers):
        return Placement()
    ranks = {partition: processes.owner(number) for partition, number in enumerate(numbers)}
    stacked = partial(owned_axes, owners=ranks)
    return Placement(stacked, Process(here[0], LateMessages(processes, ranks)))


def devices_of(request: CompileRequest, processes: JaxProcesses) -> Sequence[int]:
    """The device of each partition."""
    return request.devices or processes.default_devices(request.replicas * request.partitions)


def partitions_here(numbers: Sequence[int], processes: JaxProcesses) -> list[int]:
    """The partitions on devices of this process; none if the program is of other processes."""
    if processes.size == 1:
        return [*range(len(numbers))]
    return _partitions_of(processes.index, numbers, processes)


def partitions_compiled(numbers: Sequence[int], processes: JaxProcesses) -> list[int]:
    """The partitions that this process compiles for: its own, else those of the first device.

    JAX asks every process for the shardings of results, also where nothing runs.
    """
    here = partitions_here(numbers, processes)
    return here or _partitions_of(processes.owner(numbers[0]), numbers, processes)


def _partitions_of(process: int, numbers: Sequence[int], processes: JaxProcesses) -> list[int]:
    return [n for n, number in enumerate(numbers) if processes.owner(number) == process]


def order_here(
    program: LocalProgram, here: Sequence[int], format: BufferFormat
) -> tuple[int, ...] | None:
    """The index in the stack of each piece of this process; None for the order of the stack."""
    if program.here is None:
        return format.order
    whole = range(program.world.count) if format.order is None else format.order
    order = tuple([whole[partition] for partition in here])
    if {*order} != {*program.here.places}:
        raise Unsupported(
            "an array whose devices are in another order than those of the program, over several "
            "processes",
            help="use meshes with the same order of devices",
        )
    return order
