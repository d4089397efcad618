"""The factor rule: the loop nest of an op, and the dims that each factor runs over."""

from __future__ import annotations

import math
import string
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Literal, TypeAlias

from weft.ir.types import TensorType, Types
from weft.records import dataclass

# Shardy's pass-through, reduction, need_replication and permutation factors.
Role = Literal["pass", "reduction", "whole", "permutation"]
Combine = Literal["add", "mul", "max", "min", "and", "or", "xor"]
# For each dim of one tensor, its factors, major first.
Dims: TypeAlias = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class RuleFactor:
    """One index of an op's loop nest.

    `pass` factors may be split freely; `reduction` ones leave partial results to combine;
    `permutation` ones may be split if neighbours exchange data; `whole` ones must be gathered.
    """

    size: int
    role: Role = "pass"
    combine: Combine | None = None  # how a reduction combines its partial results, if known
    blocked: bool = False  # shardings do not propagate along it
    needs_offset: bool = False  # a shard needs more than the operands' shards, such as its offset


@dataclass(frozen=True)
class Rule:
    """The factors of an op, and the dims they run over, for every operand and every result."""

    factors: tuple[RuleFactor, ...]
    operands: tuple[Dims, ...]
    results: tuple[Dims, ...]

    @cached_property
    def points(self) -> int:
        """The size of the whole iteration space."""
        return math.prod(f.size for f in self.factors)

    @cached_property
    def is_aided(self) -> bool:
        """Whether some factor is needs_offset."""
        return any(f.needs_offset for f in self.factors)

    @cached_property
    def parts(self) -> tuple[int, ...]:
        """The connected component of each factor: factors of one tensor are connected.

        All are one component if operands and results differ in their factors: a result may depend
        on any of them then.
        """
        parts = list(range(len(self.factors)))
        read, written = (
            {f for dims in side for factors in dims for f in factors}
            for side in (self.operands, self.results)
        )
        if read != written:
            return (0,) * len(parts)
        for dims in (*self.operands, *self.results):
            met = {parts[f] for factors in dims for f in factors}
            parts = [min(met) if p in met else p for p in parts]
        return tuple(parts)

    def names(self) -> tuple[str, ...]:
        """i, j, ..., z, z_1, z_2, ... as Shardy names them."""
        letters = string.ascii_lowercase[8:]
        count = len(letters)
        return tuple(
            letters[n] if n < count else f"z_{n - count + 1}" for n in range(len(self.factors))
        )

    def __str__(self) -> str:
        names = self.names()
        sizes = ", ".join(f"{n}={f.size}" for n, f in zip(names, self.factors, strict=True))
        text = f"({_side(self.operands, names)})->({_side(self.results, names)}) {{{sizes}}}"
        for role, word in _WORDS.items():
            chosen = [n for n, f in zip(names, self.factors, strict=True) if f.role == role]
            text += f" {word}={{{', '.join(chosen)}}}" if chosen else ""
        blocked = [n for n, f in zip(names, self.factors, strict=True) if f.blocked]
        return text + (f" blocked_propagation={{{', '.join(blocked)}}}" if blocked else "")


_WORDS: dict[Role, str] = {
    "reduction": "reduction",
    "whole": "need_replication",
    "permutation": "permutation",
}


def _side(tensors: tuple[Dims, ...], names: tuple[str, ...]) -> str:
    return ", ".join(f"[{', '.join(''.join(names[f] for f in dim) for dim in t)}]" for t in tensors)


class RuleBuilder:
    """Collects factors in order; dims without a factor become whole ones."""

    def __init__(self, operands: Types, results: Types) -> None:
        self._operands = [_empty(t) for t in operands]
        self._results = [_empty(t) for t in results]
        self._types = (*operands, *results)
        self._factors: list[RuleFactor] = []

    def factor(
        self,
        operand_dims: Sequence[int | None],
        result_dims: Sequence[int | None],
        size: int,
        role: Role = "pass",
        *,
        combine: Combine | None = None,
        blocked: bool = False,
        needs_offset: bool = False,
    ) -> RuleBuilder:
        """Add one factor: for each tensor the dim it runs over, or None."""
        index = len(self._factors)
        self._factors.append(RuleFactor(size, role, combine, blocked, needs_offset))
        for tensors, dims in ((self._operands, operand_dims), (self._results, result_dims)):
            for tensor, dim in zip(tensors, dims, strict=True):
                if dim is not None and tensor is not None:
                    tensor[dim].append(index)
        return self

    def pointwise(
        self,
        shape: Sequence[int],
        role: Callable[[int], Role] | Role = "pass",
        *,
        skip: Callable[[int], bool] = lambda dim: False,
        blocked: bool = False,
    ) -> RuleBuilder:
        """Add a factor for each dim that every operand and result of that rank shares."""
        for dim, size in enumerate(shape):
            if skip(dim):
                continue
            # Scalars, such as the bounds of a clamp, have no dims to share.
            dim_role = role if isinstance(role, str) else role(dim)
            self.factor(
                [dim if _rank(t) == len(shape) else None for t in self._operands],
                [dim if _rank(t) == len(shape) else None for t in self._results],
                size,
                dim_role,
                blocked=blocked,
            )
        return self

    def build(self) -> Rule:
        """The rule; every dim without a factor gets one of its own that must stay whole."""
        for tensor, type in zip((*self._operands, *self._results), self._types, strict=True):
            for dim, given in enumerate(tensor or ()):
                if not given:
                    assert isinstance(type, TensorType)
                    given.append(len(self._factors))
                    self._factors.append(RuleFactor(type.bounds[dim], "whole"))
        return Rule(
            tuple(self._factors),
            tuple(tuple(tuple(d) for d in t or ()) for t in self._operands),
            tuple(tuple(tuple(d) for d in t or ()) for t in self._results),
        )


def _empty(type: object) -> list[list[int]] | None:
    return [[] for _ in type.shape] if isinstance(type, TensorType) else None


def _rank(tensor: list[list[int]] | None) -> int | None:
    return None if tensor is None else len(tensor)
