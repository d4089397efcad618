"""Sources of programs, and the conversion of their callers' values."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, Protocol, runtime_checkable

from weft.capture.captured import Captured, Leaf
from weft.ir.module import Module


class FlatArguments(Protocol):
    """Flattened arguments."""

    @property
    def values(self) -> tuple[Any, ...]:
        """One for each leaf."""
        ...


def no_seed(source: object) -> Any:
    """The `seed` of sources whose random numbers have keys among their arguments."""
    raise AssertionError("the seeds of its random numbers are arguments of its own")


def no_update(source: object, *args: Any, **kwargs: Any) -> None:
    """The `update` of sources without side effects."""
    raise AssertionError("it changes no argument in place")


class Source(Protocol):
    """Something to compile: one program for each cache key of arguments."""

    @property
    def name(self) -> str:
        """The program's name."""
        ...

    @property
    def function(self) -> Callable[..., Any] | None:
        """The user's callable, or None."""
        ...

    @property
    def needs_arguments(self) -> bool:
        """Whether it can be compiled only for arguments."""
        ...

    @property
    def takes_tensors(self) -> bool:
        """Whether arguments and results are PyTorch tensors."""
        ...

    def flatten(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Hashable, FlatArguments]:
        """The cache key of the program for these arguments, and the flattened arguments."""
        ...

    def quick_key(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Hashable, Sequence[Any]]:
        """A cheap cache key for the call, or None if only the full key will do; and the leaves."""
        ...

    def settings(self) -> Callable[[], Hashable] | None:
        """Reads the settings that a program depends on beside its arrays; None if more counts."""
        ...

    def capture(self, call: Any) -> Captured:
        """The program for these arguments."""
        ...

    def to_program(self, value: Any, leaf: Leaf) -> Any:
        """A leaf of the arguments as the immutable array that the program takes."""
        ...

    def to_user(self, array: Any, leaf: Leaf) -> Any:
        """A result of the program in the caller's type."""
        ...

    def is_converted(self, leaf: Leaf) -> bool:
        """Whether `to_user` returns something other than the program's array."""
        ...

    def seed(self) -> Any:
        """The last argument of a program that draws random numbers, anew for every run."""
        ...

    def update(
        self,
        values: Sequence[Any],
        updated: Sequence[int],
        results: Sequence[Any],
        counted: Sequence[tuple[int, float]] = (),
    ) -> None:
        """Write the first results into the arguments that the program updates in place.

        Without results, the program has written there, and the arguments are marked as updated.
        `counted` results add a number to their argument.
        """
        ...

    def is_traced(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether the arguments are tracers of a program that is being traced."""
        ...

    def inlined(self) -> Callable[..., Any]:
        """The function to trace in place of the call."""
        ...


@runtime_checkable
class Varied(Protocol):
    """A source with options that change how a program computes, but not its results."""

    def variants(self) -> Iterator[tuple[str, Module]]:
        """The latest program with other options, from small changes to large ones."""
        ...
