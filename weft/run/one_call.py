"""Programs whose kernels are one call: arguments, outputs and donors, on the host or a device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from functools import cached_property
from typing import TYPE_CHECKING

from weft.array.host import HOST_MEMORY
from weft.array.stacked import Kind, kind_of
from weft.records import dataclass
from weft.run.code import Call, Code, Slots
from weft.run.launch import Calls, Place

if TYPE_CHECKING:
    from weft.run.arguments import Arguments


@dataclass(frozen=True, slots=True)
class Output:
    """A buffer that a kernel writes and a run allocates, or takes over from a donated argument."""

    slot: int
    kind: Kind
    nbytes: int
    owned: bool
    places: Sequence[Place]  # in address tables
    donor: int | None  # the argument


@dataclass(eq=False)
class OneCall:
    """The parts of a program that is one call of kernels; none of its arguments is a token."""

    code: Code
    call: Call
    calls: Calls
    arguments: Arguments
    results: Sequence[tuple[int, bool]]
    donated: Sequence[int]
    frames: list[Slots]
    kinds: list[Kind] = field(init=False)

    def __post_init__(self) -> None:
        self.kinds = [kind for kind, *_ in self.arguments.listed if kind is not None]

    @cached_property
    def outputs(self) -> list[Output]:
        """In the order of the results; where each is one result, none need be assembled."""
        calls, arguments, owned = self.calls, self.arguments, dict(self.results)
        memory = HOST_MEMORY if calls.memory.is_host else calls.memory
        argument_of = {slot: n for n, slot in enumerate(arguments.slots)}
        order = {slot: n for n, (slot, _) in enumerate(self.results)}
        rows = [row for launch in self.call.launches for row in calls.fresh_of(launch)]
        rows.sort(key=lambda row: order.get(row[0], len(order)))
        found: list[Output] = []
        for slot, donor, shape, dtype, nbytes, places in rows:
            kind = kind_of(arguments.sub_axes, shape, dtype, memory)
            found.append(
                Output(slot, kind, nbytes, owned.get(slot, False), places, argument_of.get(donor))
            )
        return found

    @property
    def made(self) -> list[tuple[Kind, int, bool]]:
        """Kind and bytes of the outputs, and whether they are owned."""
        return [(output.kind, output.nbytes, output.owned) for output in self.outputs]

    @property
    def over(self) -> dict[int, int]:
        """By output: the argument that is its donor."""
        return {n: o.donor for n, o in enumerate(self.outputs) if o.donor is not None}


def one_call_of(
    code: Code,
    calls: Calls,
    arguments: Arguments,
    results: Sequence[tuple[int, bool]],
    donated: Sequence[int],
    frames: list[Slots],
) -> OneCall | None:
    """The parts of a program; None unless it is one call of kernels on tensors."""
    if len(code.units) != 1 or not isinstance(code.units[0], Call):
        return None
    if any(kind is None for kind, *_ in arguments.listed):  # tokens
        return None
    return OneCall(code, code.units[0], calls, arguments, results, donated, frames)
