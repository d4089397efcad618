"""What run needs of a target: kernels in memory, and commands that run them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias, runtime_checkable

from weft.array.stacked import Kind, Stacked
from weft.kernels.unattended import Unattended


class Commands(Protocol):
    """Kernels that run one after another in one native call; written once and run often."""

    def kernel(self, loaded: Any, operands: Sequence[int]) -> int:
        """Add a kernel on operands at these addresses; where in `pointers` they begin."""
        ...

    @property
    def pointers(self) -> Any:
        """The addresses of all operands, as an array of 64-bit integers that may be written to."""
        ...

    def run(self) -> None:
        """Run all kernels, without the GIL."""
        ...


@runtime_checkable
class Repeats(Protocol):
    """Commands that can be the test of a loop which runs without Python."""

    def repeat(self, work: Any, verdict: int, moves: int, limit: int) -> int:
        """Run this, a test, and then other commands, as long as the byte at `verdict` is not 0.

        At `moves` are 64-bit integers that say what changes places after every round: how many
        values do, and for each of them how many levels and buffers it has, the buffer that is
        written next, where each level is now (it becomes what the one above was), the buffers, how
        many operands read each level and how many write it, and where these operands' addresses
        are. How many rounds there were; after `limit` of them it has not been tested again.
        """
        ...


# What a stack has to be, and where in `pointers` its address is to be.
Said: TypeAlias = tuple[Kind, Sequence[int]]
OnStacks: TypeAlias = Callable[[tuple[Stacked | None, ...], tuple[Stacked, ...]], bool]


@runtime_checkable
class TakesStacks(Protocol):
    """Commands that can find the addresses in stacks, where native code knows how to read them."""

    def unattended(self) -> Unattended:
        """What native code needs to run all kernels by itself, from now on and nobody else."""
        ...

    def on_stacks(self, given: Sequence[Said], made: Sequence[Said]) -> OnStacks:
        """What runs all kernels on stacks that are given, and on others that they write to.

        It answers whether the given ones are what they have to be; else nothing has run.
        """
        ...


class Target(Protocol):
    """What runs kernels."""

    def load(self, kernels: Sequence[Any]) -> Sequence[Any]:
        """Kernels in memory, ready for `Commands.kernel`."""
        ...

    def commands(self) -> Commands:
        """An empty list of commands."""
        ...
