"""Options of `weft.compile` that concern the call: positions of arguments, and keywords."""

from __future__ import annotations

import difflib
import inspect
import operator
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, TypeAlias

from weft.capture.shardings import Spelled
from weft.errors import WeftError
from weft.mesh import Mesh, as_mesh
from weft.records import dataclass

Positions: TypeAlias = int | Sequence[int] | None


@dataclass(frozen=True, slots=True)
class CallOptions:
    """The call options of a program, those of jax.jit among them."""

    mesh: object = None
    in_shardings: Spelled = None
    out_shardings: Spelled = None
    donate_argnums: tuple[int, ...] = ()
    static_argnums: tuple[int, ...] = ()
    plan: object = None  # shardings by names of parameters and arguments, of PyTorch programs
    capacity: float | None = None  # of experts: times a device's even share of tokens

    @property
    def our_mesh(self) -> Mesh | None:
        """The mesh as a `weft.Mesh`."""
        return None if self.mesh is None else as_mesh(self.mesh)


def as_positions(word: str, positions: Positions) -> tuple[int, ...]:
    """Positions of arguments as a tuple of integers, or an error."""
    if positions is None:  # as for jax.jit
        return ()
    listed = (
        positions
        if isinstance(positions, Iterable) and not isinstance(positions, str)
        else (positions,)
    )
    try:
        if any(isinstance(n, bool) for n in listed):
            raise TypeError
        return tuple([operator.index(n) for n in listed])
    except TypeError:
        raise WeftError(
            f"{word} is {type(positions).__name__} {positions!r}, not positions of arguments",
            help=f"give a number or a tuple of numbers: {word}=(0, 2)",
        ) from None


def counted_positions(word: str, given: Positions, count: int) -> set[int]:
    """Positions among `count` arguments, negative ones resolved."""
    listed = as_positions(word, given)
    for n in listed:
        if not -count <= n < count:
            several = "argument is" if count == 1 else "arguments are"
            raise WeftError(
                f"{word} names argument {n}, but {count} positional {several} given",
                help=f"use numbers from {-count} to {count - 1}" if count else "pass arguments",
            )
    return {n % count for n in listed}


def check_apart(static: Collection[int], donated: Collection[int]) -> None:
    """Refuse an argument that is both static and donated."""
    if both := set(static) & set(donated):
        raise WeftError(
            f"argument {min(both)} is both static and donated", help="only arrays can be donated"
        )


def check_keywords(
    keywords: Iterable[str], fn: Callable[..., Any] | None, options: Sequence[str]
) -> None:
    """Refuse keywords that are neither options nor arguments of the function."""
    taken = None if fn is None else _keywords_of(fn)
    for word in keywords:
        if fn is not None and (taken is None or word in taken):
            continue
        near = difflib.get_close_matches(word, options, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        name = getattr(fn, "__name__", "the function")
        also = "" if fn is None else f", and {name} takes no argument of that name"
        raise WeftError(
            f"weft.compile has no option {word!r}{also}",
            help=f"{hint}options are {', '.join(options)}",
        )


def _keywords_of(fn: Callable[..., Any]) -> set[str] | None:
    """The keywords that a function takes; None where it takes any or has no signature."""
    try:
        parameters = inspect.signature(fn).parameters.values()
    except (TypeError, ValueError):
        return None
    if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters):
        return None
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {p.name for p in parameters if p.kind in named}


def check_programs(count: Any) -> int:
    """A number of programs, or an error."""
    if isinstance(count, int) and not isinstance(count, bool) and count > 0:
        return count
    raise WeftError(f"programs={count!r} is no count", help="give 1 or more")


def check_capacity(capacity: float | None) -> float | None:
    """A factor of an even share of tokens, or an error."""
    is_number = isinstance(capacity, int | float) and not isinstance(capacity, bool)
    if capacity is None or (is_number and capacity > 0):
        return capacity
    raise WeftError(
        f"capacity={capacity!r} is no factor of an even share of tokens",
        help="give 1.25 for a quarter more than the share of a device, None for room for all",
    )


def check_dynamic(dynamic: object, shapes: object) -> bool:
    """Whether sizes vary from call to call, or an error."""
    if not isinstance(dynamic, bool):
        raise WeftError(
            f"dynamic={dynamic!r} is not a boolean",
            help="dynamic=True: dim 0 of the tensors varies; name others in dynamic_shapes=",
        )
    if dynamic and shapes is not None:
        raise WeftError(
            "dynamic=True and dynamic_shapes= are both given",
            help="leave dynamic out: dynamic_shapes names all dims that vary",
        )
    return dynamic or shapes is not None
