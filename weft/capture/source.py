"""Sources: where programs come from, and how their callers' values become the program's."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, Protocol

from weft.capture.captured import Captured, Leaf


class FlatArguments(Protocol):
    """Arguments that are taken apart."""

    @property
    def values(self) -> tuple[Any, ...]:
        """One for each leaf."""
        ...


class Source(Protocol):
    """Something to compile: one program for each kind of arguments."""

    @property
    def name(self) -> str:
        """What the program is called."""
        ...

    @property
    def function(self) -> Callable[..., Any] | None:
        """What users would call themselves, if it is something to call."""
        ...

    @property
    def needs_arguments(self) -> bool:
        """Whether only arguments say what to compile."""
        ...

    def flatten(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Hashable, FlatArguments]:
        """What the program for these arguments is remembered by, and the arguments taken apart."""
        ...

    def glance(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Hashable, Sequence[Any]]:
        """What tells cheaply that the program is an earlier call's, if it does, and the leaves."""
        ...

    def capture(self, given: Any) -> Captured:
        """The program for these arguments."""
        ...

    def to_program(self, value: Any, leaf: Leaf) -> Any:
        """A leaf of the arguments as the array that the program takes, which nobody changes."""
        ...

    def to_user(self, array: Any, leaf: Leaf) -> Any:
        """A result of the program as its caller expects it."""
        ...

    def is_converted(self, leaf: Leaf) -> bool:
        """Whether callers get something else than the array that the program gives."""
        ...

    def update(self, values: Sequence[Any], updated: Sequence[int], results: list[Any]) -> None:
        """Write the first results back into the arguments that the program changes in place."""
        ...

    def is_traced(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether the arguments stand for values of a program that is being made."""
        ...

    def inlined(self) -> Callable[..., Any]:
        """What is traced then, in the place of a call."""
        ...
