"""Kernels made of a part of another's steps, numbered anew."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from weft.kernels.kernel import (
    Apply,
    Choose,
    Contract,
    Factor,
    Kernel,
    Load,
    Operand,
    Pick,
    Reduce,
    Schedule,
    Step,
    Store,
)


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
        self.numbers[number] = self.add(self.renumbered(step))

    def renumbered(self, step: Step) -> Step:
        """A step whose arguments have the new numbers."""
        n = self.numbers
        match step:
            case Apply(args=args):
                return replace(step, args=tuple([n[a] for a in args]))
            case Choose(inside=inside, outside=outside):
                return replace(step, inside=n[inside], outside=n[outside])
            case Reduce(arg=arg, init=init):
                return replace(step, arg=n[arg], init=None if init is None else n[init])
            case Pick(key=key, value=value):
                return replace(step, key=n[key], value=n[value])
            case Contract(lhs=lhs, rhs=rhs):
                return replace(step, lhs=n[lhs], rhs=n[rhs])
            case Store(arg=arg):
                return replace(step, arg=n[arg])
            case Load(shifts=shifts):
                moved = tuple([replace(s, index=n[s.index]) for s in shifts])
                return replace(step, shifts=moved)
            case _:
                return step

    def kernel(
        self, like: Kernel, name: str, factors: Sequence[Factor], operands: Sequence[Operand]
    ) -> tuple[Kernel, tuple[int, ...]]:
        """The kernel, and the numbers of the operands that it accesses."""
        touched = {s.operand for s in self.listed if isinstance(s, Load | Store)}
        kept = [n for n in range(len(operands)) if n in touched]
        numbers = {n: k for k, n in enumerate(kept)}
        steps = tuple(
            [
                replace(s, operand=numbers[s.operand]) if isinstance(s, Load | Store) else s
                for s in self.listed
            ]
        )
        used = tuple([operands[n] for n in kept])
        made = Kernel(name, tuple(factors), used, steps, Schedule(), like.excess_precision)
        return made, tuple(kept)
