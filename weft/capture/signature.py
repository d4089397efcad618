"""The signature of a captured program after partitioning."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from weft.capture.captured import Captured, Leaf
from weft.capture.jax.structure import structure_of
from weft.capture.jax.values import positional_parameters
from weft.executable.literal import is_literal
from weft.executable.signature import DEVICE, Parameter, Signature, ValueSpec, flat_signature
from weft.ir.attrs import Attrs
from weft.ir.module import Function
from weft.ir.names import (
    DONATED,
    DONOR,
    GLOBAL,
    LAYOUT,
    LOCAL_SHARDING,
    MEMORY_KIND,
    RESULT_INFO,
    UPDATED,
)
from weft.ir.scan import parse_type
from weft.ir.types import TensorType, Type
from weft.mesh import Mesh, parse_sharding

_KNOWN = {LOCAL_SHARDING, GLOBAL, MEMORY_KIND, LAYOUT, DONOR, UPDATED, RESULT_INFO}
_DIMS = re.compile(r'"\{(\d*(?:,\d+)*)\}"')


def signature_of(
    name: str,
    captured: Captured,
    main: Function,
    mesh: Mesh,
    meshes: Mapping[str, Mesh],
) -> Signature:
    """The signature of a program, from its captured form and its partitioned function."""
    arguments = _specs(captured.arguments, main.arg_types, main.arg_attrs)
    results = _specs(captured.results, main.result_types, main.res_attrs)
    if captured.in_tree is None:
        return flat_signature(name, mesh, arguments, results, meshes)
    takes, gives = structure_of(captured.in_tree), structure_of(captured.out_tree)
    named = tuple(meshes.items())
    listed = captured.parameters or (Parameter(""),) * len(takes.parts[0].parts)
    made = Signature(
        name, mesh, takes, gives, arguments, results, listed, meshes=named, narrows=captured.narrows
    )
    return made.check()


def parameters_of(
    fn: Callable[..., Any],
    given: Sequence[int],
    static: Sequence[tuple[int, Any]],
    keywords: Sequence[str] = (),
) -> tuple[Parameter, ...]:
    """The positional parameters of a function for a call with arguments at these positions.

    Those passed by keyword follow, up to the first that is missing.
    """
    values = dict(static)
    listed = positional_parameters(fn)
    names = [p.name if p.kind is p.POSITIONAL_OR_KEYWORD else "" for p in listed]
    made: list[Parameter] = []
    for n in range(len(given) + len(values)):
        name = names[n] if n < len(names) else ""
        if n in values:
            known = is_literal(values[n])
            made.append(Parameter(name, "static", values[n] if known else None, known))
        else:
            made.append(Parameter(name))
    for name in names[len(made) :]:
        if name not in keywords:
            break
        made.append(Parameter(name, "keyword"))
    return tuple(made)


def _specs(
    leaves: Sequence[Leaf], types: Sequence[Type], attrs: Sequence[Attrs]
) -> tuple[ValueSpec, ...]:
    shown = attrs or ((),) * len(types)
    return tuple(map(_spec, leaves, types, shown))


def _spec(leaf: Leaf, local: Type, attrs: Attrs) -> ValueSpec:
    found = dict(attrs)
    assert isinstance(local, TensorType), "tokens stay inside of a program"
    whole = parse_type(found[GLOBAL]) if GLOBAL in found else local
    assert isinstance(whole, TensorType), f"{whole} is not a global tensor type"
    return ValueSpec(
        leaf.name,
        whole,
        local,
        parse_sharding(found[LOCAL_SHARDING]) if LOCAL_SHARDING in found else None,
        _layout(found.get(LAYOUT, "")),
        found.get(MEMORY_KIND, DEVICE).strip('"'),
        leaf.donated or bool(DONATED & found.keys()),
        leaf.weak,
        _logical(leaf),
        tuple([pair for pair in attrs if pair[0] not in _KNOWN]),
    )


def _layout(text: str) -> tuple[int, ...] | None:
    """The layout in an attribute, None for row-major."""
    match = _DIMS.fullmatch(text)
    if match is None:
        return None
    dims = tuple([int(word) for word in match[1].split(",") if word])
    return None if dims == tuple(reversed(range(len(dims)))) else dims


def _logical(leaf: Leaf) -> str:
    """JAX's shape and dtype of a value of an extended dtype, such as random keys."""
    if leaf.holds_keys:
        return str(leaf.dtype)
    return "float0" if leaf.dtype.names == ("float0",) else ""
