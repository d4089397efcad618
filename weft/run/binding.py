"""Interfaces of the binder: what the steps of control flow and of host nodes use of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from weft.executable.items import Block, Site, Slot, Stack
    from weft.executable.plan import Plan
    from weft.executable.process import Process
    from weft.kernels.host import HostKernel
    from weft.run.code import Code, SlotStep
    from weft.run.launch import Calls


class HostKernels(Protocol):
    """Kernels for the nodes that the host computes."""

    process: Process | None  # None if all devices are in this process

    def kernel(self, site: Site, stream: str | None = None) -> HostKernel:
        """The function of a node; on a stream if it is asynchronous."""
        ...


class BlockBinder(Protocol):
    """Binds nested blocks, and knows the plan, the slots and the kernels' calls."""

    plan: Plan
    host: HostKernels
    calls: Calls | None
    is_on_host: bool

    @property
    def stacks(self) -> Sequence[Stack | None]:
        """The stacks of slots; None for slots without one."""
        ...

    @property
    def constants(self) -> Mapping[Slot, Any]:
        """The constants by slot."""
        ...

    def new(self) -> Slot:
        """Allocate a runtime-internal slot."""
        ...

    def is_read_by_kernels(self, slot: Slot) -> bool:
        """Whether a kernel reads a slot and needs it dense."""
        ...

    def settled(self, slots: Iterable[Slot]) -> SlotStep | None:
        """The action that updates kernels' address tables for these slots, or None."""
        ...

    def inner(self, block: Block, code: Code, owned: Iterable[Slot] = ()) -> Code:
        """The code of a nested block."""
        ...
