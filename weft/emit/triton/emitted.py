"""Emitted kernels: launches of Triton functions and calls of PyTorch, on a kernel's operands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from weft.kernels.kernel import Operand
from weft.records import dataclass


@dataclass(frozen=True, slots=True)
class GridLaunch:
    """One launch of a Triton function; operands are numbers of the kernel's, then of scratch."""

    name: str
    text: str
    signature: tuple[str, ...]  # pointer types
    operands: tuple[int, ...]
    grid: tuple[int, int, int]
    warps: int = 4
    stages: int = 2
    fused_multiply_add: bool = True


@dataclass(frozen=True, slots=True)
class LibraryCall:
    """One call of PyTorch on tensors of the operands' memory; the text says what it computes."""

    name: str
    text: str
    operands: tuple[int, ...]
    run: Callable[..., Any]


EmittedPart: TypeAlias = GridLaunch | LibraryCall


@dataclass(frozen=True, slots=True)
class EmittedParts:
    """A kernel's launches, in order, and its scratch buffers."""

    parts: tuple[EmittedPart, ...]
    scratch: tuple[Operand, ...] = ()

    @property
    def text(self) -> str:
        """All texts, in order."""
        return "\n\n".join([part.text for part in self.parts])
