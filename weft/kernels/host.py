"""How the host computes a node: a function of stacked arrays, made once for where it stands."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from weft.executable.items import Site, Traits

if TYPE_CHECKING:
    from weft.executable.process import Process
    from weft.ir.types import Array


@dataclass(frozen=True, slots=True)
class HostKernel:
    """A function that computes a node.

    `run` takes the operands and gives the result, or all results where there are several; `into`,
    if there is one, takes the operands and the array that the result is to be written into. What
    waits for other processes can be run in two: `begin` gives what `finish` needs.
    """

    run: Callable[..., Any]
    into: Callable[..., object] | None = None
    shares: bool = False  # a result may share the memory of an operand
    in_place: tuple[int, ...] = ()  # operands in whose memory the result may be written
    sees_outside: bool = False  # values that its regions read follow the operands
    reads_rows: bool = False  # the rows that are active follow all operands
    begin: Callable[..., Any] | None = None
    finish: Callable[[Any], Any] | None = None

    @property
    def traits(self) -> Traits:
        """What the memory plan has to know of it."""
        writes = self.into is not None
        return Traits(self.shares, writes, self.in_place, self.sees_outside, self.reads_rows)


def in_two(
    begin: Callable[..., Any], finish: Callable[[Any], Any], reads_rows: bool = False
) -> HostKernel:
    """A kernel of two halves; without other work between them they are one."""
    return HostKernel(
        lambda *arrays: finish(begin(*arrays)), reads_rows=reads_rows, begin=begin, finish=finish
    )


Maker: TypeAlias = Callable[[Site], HostKernel]


class Collectives(Protocol):
    """What does the collectives of an engine: lockstep along the stack, workers by a transport."""

    process: Process | None  # None if all devices are here

    def kernel(self, site: Site, stream: str | None = None) -> HostKernel:
        """The function of a collective, or of a node that asks where its devices are."""
        ...


def local(array: Array, lead: int) -> tuple[int, ...]:
    """The shape of one device's piece."""
    return array.shape[lead:]


def several(run: Callable[..., tuple[Any, ...]], count: int) -> Callable[..., Any]:
    """A function of one result as kernels want it: without the tuple."""
    if count != 1:
        return run

    def one(*arrays: Any) -> Any:
        (made,) = run(*arrays)
        return made

    return one
