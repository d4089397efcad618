"""Modules and StableHLO as sources: arguments and results are flat lists of arrays."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Hashable, Sequence
from typing import Any

import numpy as np

from weft.array import Array
from weft.array.exchange import in_native_order
from weft.capture.captured import Captured, Leaf
from weft.capture.jax.inline import is_traced, refuse_module
from weft.capture.normalize.tokens import keep_tokens_inside
from weft.capture.options import CallOptions, counted_positions
from weft.capture.shardings import Spelled, annotate, mesh_of, shardings_of
from weft.capture.source import no_seed, no_update
from weft.capture.stablehlo.parser import parse
from weft.errors import Unsupported, WeftError
from weft.ir.location import Location
from weft.ir.module import Module
from weft.ir.on_mesh import with_mesh
from weft.ir.types import TensorType, Types
from weft.ops.custom_calls.callbacks import host_functions
from weft.records import dataclass


def stablehlo_program(program: object, options: CallOptions) -> StablehloProgram | None:
    """The source of a module or of StableHLO text, bytes or path; None for other objects."""
    if not isinstance(program, Module | str | bytes | os.PathLike):
        return None
    module = program if isinstance(program, Module) else parse(program)
    if options.our_mesh is not None:
        module = with_mesh(module, options.our_mesh)
    if options.static_argnums:
        raise WeftError(
            "static_argnums of a module: all its arguments are arrays", help="leave it out"
        )
    shardings = (options.in_shardings, options.out_shardings)
    return StablehloProgram(module, *shardings, options.donate_argnums)


@dataclass(frozen=True, slots=True)
class ModuleArguments:
    """The arguments of a module, already flat."""

    values: tuple[Any, ...]


def exactly(value: Any, leaf: Leaf) -> Any:
    """An argument, which must have exactly the program's type; Python scalars adapt."""
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
    # A copy: execution is asynchronous, and the caller may write to the array after the call.
    return array.astype(leaf.dtype, copy=array.flags.writeable)


@dataclass(frozen=True, slots=True)
class StablehloProgram:
    """A module: one program for all calls."""

    module: Module
    in_shardings: Spelled = None
    out_shardings: Spelled = None
    donate_argnums: tuple[int, ...] = ()
    function: None = None
    needs_arguments: bool = False

    takes_tensors = False

    @property
    def name(self) -> str:
        return self.module.name or "main"

    def flatten(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Hashable, ModuleArguments]:
        if kwargs:
            raise WeftError(
                f"a module was called with {', '.join(kwargs)}",
                help="its arguments have no names: pass arrays, one after another",
            )
        return None, ModuleArguments(args)

    def quick_key(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Hashable, Sequence[Any]]:
        if kwargs or not all(type(arg) is Array for arg in args):
            return None, args
        return tuple([arg.spec for arg in args]), args

    def settings(self) -> Callable[[], Hashable]:
        return tuple  # none

    def capture(self, call: ModuleArguments) -> Captured:
        """The module with the shardings of its arguments and results."""
        module = keep_tokens_inside(self.module)
        main = module.function("main")
        donated = counted_positions("donate_argnums", self.donate_argnums, len(main.arg_types))
        names = [_name(loc, n) for n, loc in enumerate(main.body.arg_locs)]
        arguments = _leaves(main.arg_types, names, main.loc, donated)
        outs = [f"result {n}" for n in range(len(main.result_types))]
        results = _leaves(main.result_types, outs, main.loc)
        inside = _one_each("in_shardings", self.in_shardings, arguments)
        outside = _one_each("out_shardings", self.out_shardings, results)
        own = next((m for m in module.meshes.values() if m.axes), None)
        mesh = mesh_of(own, [*inside, *outside])
        split = shardings_of("in_shardings:", inside, arguments, mesh)
        made = shardings_of("out_shardings:", outside, results, mesh)
        pairs = [*zip(arguments, split, strict=True)], [*zip(results, made, strict=True)]
        module = annotate(module, mesh, *pairs)
        return Captured(module, mesh, None, None, arguments, results, host=host_functions(module))

    to_program = staticmethod(exactly)

    def to_user(self, array: Any, leaf: Leaf) -> Any:
        return array

    def is_converted(self, leaf: Leaf) -> bool:
        return False

    seed, update = no_seed, no_update

    def is_traced(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        return is_traced((args, kwargs))

    def inlined(self) -> Callable[..., Any]:
        raise refuse_module()


def _name(loc: Location, index: int) -> str:
    return loc.name or f"argument {index}"


def _leaves(
    types: Types, names: Sequence[str], loc: Location, donated: Collection[int] = ()
) -> tuple[Leaf, ...]:
    leaves = []
    for n, (type, name) in enumerate(zip(types, names, strict=True)):
        if not isinstance(type, TensorType):
            raise Unsupported(
                f"main takes or gives a {type}", help="it may take and give tensors", loc=loc
            )
        leaves.append(Leaf(name, type.sizes, type.dtype.numpy, donated=n in donated))
    return tuple(leaves)


def _one_each(word: str, shardings: Spelled, leaves: Sequence[Leaf]) -> tuple[Any, ...]:
    """One sharding per leaf, from a single one or a list."""
    if not isinstance(shardings, tuple | list):
        return (shardings,) * len(leaves)
    if len(shardings) != len(leaves):
        raise WeftError(
            f"{word} does not fit: {len(shardings)} entries for {len(leaves)} values",
            help="give one sharding for all, or one for each, or None where Weft may choose",
        )
    return tuple(shardings)
