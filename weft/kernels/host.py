"""Host kernels: numpy functions on stacked arrays, one for each node that the host computes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from weft.executable.items import Site, Traits
from weft.records import dataclass

if TYPE_CHECKING:
    from weft.executable.process import Process
    from weft.ir.types import Array


@dataclass(frozen=True, slots=True)
class HostKernel:
    """The function that computes one node on the host.

    `run` takes the operands and returns the result, or a tuple of results; `into`, if present,
    takes the operands and the output array. A kernel that communicates with other processes can be
    split: `begin` returns the state that `finish` waits on.
    """

    run: Callable[..., Any]
    into: Callable[..., object] | None = None
    shares: bool = False  # a result may alias an operand
    in_place: tuple[int, ...] = ()  # operands that the result may overwrite
    sees_outside: bool = False  # values captured by its regions follow the operands
    reads_rows: bool = False  # the active rows follow all operands
    begin: Callable[..., Any] | None = None
    finish: Callable[[Any], Any] | None = None
    # Whether it takes operands in PyTorch's memory, too (`weft.array.tensor_stack`).
    takes_tensors: Callable[[], bool] | None = None

    @property
    def traits(self) -> Traits:
        """The properties that the memory planner reads."""
        writes = self.into is not None
        return Traits(self.shares, writes, self.in_place, self.sees_outside, self.reads_rows)


def in_two(
    begin: Callable[..., Any],
    finish: Callable[[Any], Any],
    reads_rows: bool = False,
    takes_tensors: Callable[[], bool] | None = None,
) -> HostKernel:
    """A kernel split into `begin` and `finish`; run as one if nothing overlaps it."""
    return HostKernel(
        lambda *arrays: finish(begin(*arrays)),
        reads_rows=reads_rows,
        begin=begin,
        finish=finish,
        takes_tensors=takes_tensors,
    )


Maker: TypeAlias = Callable[[Site], HostKernel]  # builds the host kernel of one node


class Collectives(Protocol):
    """The collectives of an engine: lockstep along the stack, or workers over a transport."""

    process: Process | None  # None if all devices are here

    def kernel(self, site: Site, stream: str | None = None) -> HostKernel:
        """The function of a collective, or of a node that reads its devices' positions."""
        ...


def local(array: Array, lead: int) -> tuple[int, ...]:
    """The shape of one device's piece."""
    return array.shape[lead:]


def single_result_convention(run: Callable[..., tuple[Any, ...]], count: int) -> Callable[..., Any]:
    """Adapts a function of several results to the single-result convention: no tuple of one."""
    if count != 1:
        return run

    def one(*arrays: Any) -> Any:
        (result,) = run(*arrays)
        return result

    return one
