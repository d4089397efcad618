"""Kernels made of a part of another's steps, numbered anew."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field, replace

from weft.kernels.kernel import Factor, Kernel, Load, Operand, Schedule, Step, Store
from weft.kernels.rewriting import renumbered
from weft.records import dataclass


@dataclass
class StepList:
    """The steps of a kernel under construction."""

    listed: list[Step] = field(default_factory=list)
    numbers: dict[int, int] = field(default_factory=dict)  # by the original's number

    def add(self, step: Step) -> int:
        """Append a step; returns its number."""
        self.listed.append(step)
        return len(self.listed) - 1

    def keep(self, number: int, step: Step) -> None:
        """Append a step of the original, whose arguments are already there."""
        self.numbers[number] = self.add(renumbered(step, self.numbers))

    def kernel(
        self, like: Kernel, name: str, factors: Sequence[Factor], operands: Sequence[Operand]
    ) -> tuple[Kernel, tuple[int, ...]]:
        """The kernel, and the numbers of the operands that it accesses."""
        touched = {s.operand for s in self.listed if isinstance(s, Load | Store)}
        accessed = [n for n in range(len(operands)) if n in touched]
        numbers = {n: k for k, n in enumerate(accessed)}
        steps = tuple(
            [
                replace(s, operand=numbers[s.operand]) if isinstance(s, Load | Store) else s
                for s in self.listed
            ]
        )
        used = tuple([operands[n] for n in accessed])
        kernel = Kernel(name, tuple(factors), used, steps, Schedule(), like.excess_precision)
        return kernel, tuple(accessed)
