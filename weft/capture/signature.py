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
    positions: Sequence[int],
    static: Sequence[tuple[int, Any]],
    keywords: Sequence[str] = (),
) -> tuple[Parameter, ...]:
    """The positional parameters of a function for a call with arguments at these positions.

    Those passed by keyword follow, up to the first that is missing.
    """
    values = dict(static)
    listed = positional_parameters(fn)
    names = [p.name if p.kind is p.POSITIONAL_OR_KEYWORD else "" for p in listed]
    parameters: list[Parameter] = []
    for n in range(len(positions) + len(values)):
        name = names[n] if n < len(names) else ""
        if n in values:
            known = is_literal(values[n])
            parameters.append(Parameter(name, "static", values[n] if known else None, known))
        else:
            parameters.append(Parameter(name))
    for name in names[len(parameters) :]:
        if name not in keywords:
            break
        parameters.append(Parameter(name, "keyword"))
    return tuple(parameters)


def _specs(
    leaves: Sequence[Leaf], types: Sequence[Type], attrs: Sequence[Attrs]
) -> tuple[ValueSpec, ...]:
    shown = attrs or ((),) * len(types)
    return tuple(map(_spec, leaves, types, shown))


def _spec(leaf: Leaf, local: Type, attrs: Attrs) -> ValueSpec:
    attributes = dict(attrs)
    assert isinstance(local, TensorType), "tokens stay inside of a program"
    whole = parse_type(attributes[GLOBAL]) if GLOBAL in attributes else local
    assert isinstance(whole, TensorType), f"{whole} is not a global tensor type"
    return ValueSpec(
        leaf.name,
        whole,
        local,
        parse_sharding(attributes[LOCAL_SHARDING]) if LOCAL_SHARDING in attributes else None,
        _layout(attributes.get(LAYOUT, "")),
        attributes.get(MEMORY_KIND, DEVICE).strip('"'),
        leaf.donated or bool(DONATED & attributes.keys()),
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
