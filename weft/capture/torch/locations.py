"""Locations of an exported graph's nodes: the path of the module, and the user's line."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

from weft.ir.location import Location, escape

_OWN = str(Path(__file__).parents[2])  # the package
_FRAME = re.compile(r'^\s*File "(.+)", line (\d+)', re.MULTILINE)


def location_of(node: Any) -> Location:
    """`layers.0.mlp/aten.mm.default` at the innermost line that is not PyTorch's own."""
    name = "/".join(filter(None, (module_path(node), str(node.target))))
    frame = _users_frame(node.meta.get("stack_trace") or "")
    place = "" if frame is None else f'("{escape(frame[0])}":{frame[1]}:0)'
    return Location(f'"{escape(name)}"{place}')


def module_path(node: Any) -> str:
    """The name of the module whose forward made a node."""
    stack = node.meta.get("nn_module_stack")
    if not stack:
        return ""
    path, _ = list(stack.values())[-1]
    return own_path(path)


def own_path(path: Any) -> str:
    """A module's path as the user's module names it; of that module, an empty text."""
    found = str(path).removeprefix("L['self']").removeprefix(".")
    return "" if found == "inner" else found.removeprefix("inner.")


@cache
def _library() -> str:
    import torch

    return str(Path(torch.__file__).parent)


def _users_frame(trace: str) -> tuple[str, int] | None:
    frames = [(found[1], int(found[2])) for found in _FRAME.finditer(trace)]
    outside = [frame for frame in frames if not frame[0].startswith(_library())]
    users = [frame for frame in outside if not frame[0].startswith((_OWN, "<eval_with_key>"))]
    return users[-1] if users else None
