"""Opaque kernels: precompiled ones, of whose text only the first line is parsed."""

from __future__ import annotations

import re

from weft.kernels.tokens import syntax_error
from weft.records import dataclass

_HEAD = re.compile(r"kernel ([A-Za-z_]\w*)\((.*)\)( rounded)?(?: steps (\d+))?", re.ASCII)
_OPERAND = re.compile(r"(in|out)\d+: ", re.ASCII)


@dataclass(frozen=True, slots=True)
class OpaqueOperand:
    """An operand of an opaque kernel: only whether it is written is known."""

    output: bool


_READ, _WRITTEN = OpaqueOperand(False), OpaqueOperand(True)


@dataclass(frozen=True, slots=True, eq=False)
class Opaque:
    """A precompiled kernel as the runtime sees it: name, operands it writes, estimated work."""

    name: str
    operands: tuple[OpaqueOperand, ...]
    arithmetic: int = 0  # estimated operations of a flow


def opaque_kernel(line: str) -> Opaque:
    """The opaque kernel whose text begins with this line."""
    head = _HEAD.fullmatch(line)
    if head is None:
        raise syntax_error(f"{line[:60]!r} is not the first line of a kernel")
    words = _OPERAND.findall(head[2])
    sides = tuple([_WRITTEN if word == "out" else _READ for word in words])
    return Opaque(head[1], sides, int(head[4] or 0))
