"""The texts of a flow's kernels as functions of one module."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from weft.emit.llvm.emitted import Emitted
from weft.records import dataclass

_DEFINED = re.compile(r"^(?:define [^@]*@([\w.]+)\(|@([\w.]+) = (?!external ))", re.MULTILINE)
_SAYS_HOW = re.compile(r"\b(noinline|alwaysinline)\b")
_NAMES = re.compile(r"@([\w.]+)")
INLINE, INLINE_ALL = 12_000, 120_000  # characters of a kernel that is inlined, and of all of them
ALIGNED = 64


@dataclass(frozen=True, slots=True)
class InlinedKernel:
    """A kernel as a flow calls it: its functions with their tasks, and the memory they need."""

    phases: tuple[tuple[str, int], ...]
    scratch: int
    shared: int


class Inlined:
    """The functions of kernels under names of their own, and their declarations."""

    def __init__(self, kernels: Sequence[tuple[Any, Emitted]]) -> None:
        self.of: dict[Any, InlinedKernel] = {}
        self.declared: dict[str, None] = {}
        self.functions: list[str] = []
        self.scratch = 0
        room = INLINE_ALL
        for n, (kernel, emitted) in enumerate(kernels):
            names = {a or b: f"k{n}.{a or b}" for a, b in _DEFINED.findall(emitted.text)}
            inline = len(emitted.text) <= min(INLINE, room)
            room -= len(emitted.text) if inline else 0
            self._add(_renamed(emitted.text, names), inline)
            phases = tuple([(names[p.function], p.tasks) for p in emitted.phases if p.tasks])
            self.of[kernel] = InlinedKernel(phases, emitted.scratch, emitted.shared)
            self.scratch = max(self.scratch, _aligned(emitted.scratch) + _aligned(emitted.shared))

    def _add(self, text: str, inline: bool) -> None:
        how = "alwaysinline" if inline else "noinline"
        for lines in _pieces(text):
            if lines[0].startswith("define"):
                head = re.sub(r"^define (internal )?", "define internal ", lines[0])
                if not _SAYS_HOW.search(head):
                    head = f"{head.removesuffix('{')}{how} {{"
                self.functions += [head, *lines[1:]]
            else:
                self.declared.update(dict.fromkeys(lines))


def _renamed(text: str, names: dict[str, str]) -> str:
    return _NAMES.sub(lambda found: f"@{names.get(found[1], found[1])}", text)


def _pieces(text: str) -> Iterator[list[str]]:
    """Functions, and lines outside of them."""
    function: list[str] = []
    for line in text.splitlines():
        if function or line.startswith("define"):
            function.append(line)
            if line == "}":
                yield function
                function = []
        elif line.strip():
            yield [line]


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNED) * ALIGNED
