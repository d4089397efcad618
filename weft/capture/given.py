"""A module that is given as it is: its arguments and results are arrays, one after another."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from weft.array import Array
from weft.array.exchange import in_native_order
from weft.capture.captured import Captured, Leaf
from weft.capture.jax_shardings import Spelled, annotate, mesh_of, shardings_of
from weft.capture.options import Positions, counted_positions
from weft.capture.tokens import keep_tokens_inside
from weft.errors import Unsupported, WeftError
from weft.ir.location import Location
from weft.ir.module import Module
from weft.ir.types import TensorType, Types
from weft.mesh import Mesh
from weft.ops.callbacks import host_functions


def capture_module(
    module: Module,
    in_shardings: Spelled = None,
    out_shardings: Spelled = None,
    donate_argnums: Positions = (),
) -> Captured:
    """A module with the shardings that are given for its arguments and results."""
    module = keep_tokens_inside(module)
    main = module.function("main")
    donated = counted_positions("donate_argnums", donate_argnums, len(main.arg_types))
    names = [_name(loc, n) for n, loc in enumerate(main.body.arg_locs)]
    arguments = _leaves(main.arg_types, names, main.loc, donated)
    outs = [f"result {n}" for n in range(len(main.result_types))]
    results = _leaves(main.result_types, outs, main.loc)
    inside = _one_each("in_shardings", in_shardings, arguments)
    outside = _one_each("out_shardings", out_shardings, results)
    own = next((m for m in module.meshes.values() if m.axes), None)
    mesh: Mesh | None = mesh_of(own, [*inside, *outside])
    given = shardings_of("in_shardings:", inside, arguments, mesh)
    made = shardings_of("out_shardings:", outside, results, mesh)
    pairs = [*zip(arguments, given, strict=True)], [*zip(results, made, strict=True)]
    module = annotate(module, mesh, *pairs)
    host = host_functions(module)
    return Captured(module, mesh, None, None, arguments, results, host)


def _name(loc: Location, index: int) -> str:
    return loc.name or f"argument {index}"


def _leaves(
    types: Types, names: Sequence[str], loc: Location, donated: Collection[int] = ()
) -> tuple[Leaf, ...]:
    made = []
    for n, (type, name) in enumerate(zip(types, names, strict=True)):
        if not isinstance(type, TensorType):
            raise Unsupported(
                f"main takes or gives a {type}", help="it may take and give tensors", loc=loc
            )
        made.append(Leaf(name, type.sizes, type.dtype.numpy, donated=n in donated))
    return tuple(made)


def _one_each(word: str, given: Spelled, leaves: Sequence[Leaf]) -> tuple[Any, ...]:
    """One sharding for each: the same for all, or a list of them."""
    if not isinstance(given, tuple | list):
        return (given,) * len(leaves)
    if len(given) != len(leaves):
        raise WeftError(
            f"{word} does not fit: {len(given)} entries for {len(leaves)} values",
            help="give one sharding for all, or one for each, or None where Weft may choose",
        )
    return tuple(given)


def exactly(value: Any, leaf: Leaf) -> Any:
    """An argument as it is, which must have the program's type; scalars of Python take any."""
    array = value if isinstance(value, Array) else np.asarray(value)
    if array.shape != leaf.shape:
        raise WeftError(
            f"{leaf.name} has the shape {array.shape}, but the program takes {leaf.shape}",
            help=f"give an array of shape {leaf.shape}",
        )
    weak = isinstance(value, bool | int | float | complex)
    if in_native_order(array.dtype) != leaf.dtype and not weak:
        raise WeftError(
            f"{leaf.name} holds {array.dtype}, but the program takes {leaf.dtype}",
            help=f"convert it with .astype({leaf.dtype})",
        )
    if isinstance(array, Array):
        return array
    # A copy: the program may run when the caller has long gone on.
    return array.astype(leaf.dtype, copy=array.flags.writeable)
