"""A wrapper target that launches kernels one by one, to time or observe each launch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from weft.records import dataclass
from weft.target import Addresses, Commands, Runtime, SequentialLaunches

if TYPE_CHECKING:
    # A loaded program that is profiled need not import the classes of kernels for a type.
    from weft.kernels.group import Group


@dataclass(slots=True, eq=False)
class SeparateKernel:
    """A loaded kernel of one launch; equal kernels share `own`, the target's handle."""

    own: Any
    group: Group | None = None  # set by an observer
    item: int = -1  # its number in the program, set by a recorder


# Called for each launch: the kernel, its operand addresses, and the launch function.
Around: TypeAlias = Callable[[SeparateKernel, Addresses, Callable[[], None]], None]


class SeparateTarget:
    """A target that hands every launch to `around`."""

    def __init__(self, target: Runtime, around: Around) -> None:
        self.target, self.around = target, around
        self.memory, self.stream = target.memory, target.stream

    def load(self, kernels: Sequence[Any]) -> Sequence[SeparateKernel]:
        return [SeparateKernel(own) for own in self.target.load(kernels)]

    def commands(self) -> _Commands:
        return _Commands(self.target, self.around)


class _Commands(SequentialLaunches):
    """Commands of one kernel each, sharing an address table."""

    def __init__(self, target: Runtime, around: Around) -> None:
        super().__init__(self._launch)
        self.target, self.around = target, around

    def kernel(self, loaded: SeparateKernel, operands: Sequence[int]) -> int:
        one = self.target.commands()
        one.kernel(loaded.own, operands)
        return super().kernel((one, loaded), operands)

    def _launch(self, known: tuple[Commands, SeparateKernel], operands: Addresses) -> None:
        one, loaded = known
        one.pointers[: len(operands)] = operands
        self.around(loaded, operands, one.run)
