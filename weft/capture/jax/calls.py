"""Emitting Weft's custom calls in JAX's lowering, with the user's locations."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from weft.ir.location import Location

LoweringRule: TypeAlias = Callable[..., Any]


def rules_of(
    module: Any, rules: Mapping[str, LoweringRule]
) -> tuple[tuple[Any, LoweringRule], ...]:
    """Lowerings for the primitives of a JAX module, without those that this version lacks."""
    return tuple((getattr(module, name), r) for name, r in rules.items() if hasattr(module, name))


def custom_call(
    ctx: Any,
    name: str,
    operands: Sequence[Any],
    config: Mapping[str, int] | None = None,
    *,
    more_types: Sequence[Any] = (),
    has_side_effect: bool = False,
    sharding: Any = None,
) -> list[Any]:
    """A custom call of Weft's, whose result types are `more_types` and then those of the primitive.

    `sharding` is JAX's sharding of its results.
    """
    from jax._src.interpreters import mlir
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import stablehlo

    types = [_type_of(ctx, aval) for aval in ctx.avals_out]
    attributes = {
        "call_target_name": ir.StringAttr.get(name),
        "has_side_effect": ir.BoolAttr.get(has_side_effect),
        "backend_config": ir.DictAttr.get({k: _number(v) for k, v in (config or {}).items()}),
        "api_version": mlir.i32_attr(4),
    }
    shapes = _unknown_shapes(ctx)
    if shapes:
        places = np.arange(len(operands), len(operands) + len(shapes))
        attributes["indices_of_shape_operands"] = ir.DenseIntElementsAttr.get(places)
    call = stablehlo.CustomCallOp.build_generic(
        results=[*more_types, *types], operands=[*operands, *shapes], attributes=attributes
    )
    if sharding is not None:
        mlir.set_sharding(ctx.module_context, call, sharding)
    return list(call.results)


def _unknown_shapes(ctx: Any) -> list[Any]:
    """The shapes of all results as operands, if one is dynamic."""
    from jax._src import core
    from jax._src.interpreters import mlir

    shapes = [core.physical_aval(aval).shape for aval in ctx.avals_out]
    if all(map(core.is_constant_shape, shapes)):
        return []
    return [mlir.eval_dynamic_shape_as_tensor(ctx, shape) for shape in shapes]


def _type_of(ctx: Any, aval: Any) -> Any:
    """MLIR's type of a value; JAX 0.10.0 takes no context."""
    from jax._src.interpreters import mlir

    takes_context = len(inspect.signature(mlir.aval_to_ir_type).parameters) > 1
    return mlir.aval_to_ir_type(*([ctx.module_context] if takes_context else []), aval)


def _number(value: int) -> Any:
    from jaxlib.mlir import ir

    if isinstance(value, bool):
        return ir.BoolAttr.get(value)
    return ir.IntegerAttr.get(ir.IntegerType.get_signless(64), value)


def location_of(traceback: Any) -> Location | None:
    """The user's line in a traceback of JAX."""
    from jax._src import source_info_util

    frame = None if traceback is None else source_info_util.user_frame(traceback)
    if frame is None:
        return None
    return Location(f'"{frame.file_name}":{frame.start_line}:{frame.start_column}')
