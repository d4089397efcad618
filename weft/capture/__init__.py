"""Capture: a user's program becomes a module."""

from collections.abc import Mapping, Sequence
from typing import Any

from weft.capture.attention import attention
from weft.capture.captured import Captured, Leaf
from weft.capture.constrain import constrain
from weft.capture.normalize import normalize
from weft.capture.options import CallOptions, Positions, as_positions
from weft.capture.shardings import Spelled
from weft.capture.source import Source
from weft.capture.sources import source_for, source_of
from weft.capture.stablehlo.parser import parse


def capture(
    program: object,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    mesh: object = None,
    in_shardings: Spelled = None,
    out_shardings: Spelled = None,
    donate_argnums: Positions = (),
    static_argnums: Positions = (),
    plan: object = None,
) -> Captured:
    """The captured program of a function for arguments of these types, or of a module."""
    donated = as_positions("donate_argnums", donate_argnums)
    static = as_positions("static_argnums", static_argnums)
    options = CallOptions(mesh, in_shardings, out_shardings, donated, static, plan)
    called = tuple(args), dict(kwargs or {})
    source = source_for(source_of(program, options), options, *called)
    _, given = source.flatten(*called)
    return source.capture(given)


__all__ = [
    "Captured",
    "Leaf",
    "Source",
    "attention",
    "capture",
    "constrain",
    "normalize",
    "parse",
    "source_for",
    "source_of",
]
