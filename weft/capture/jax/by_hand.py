"""`custom_partitioning` in functions that are captured for an abstract mesh."""

from __future__ import annotations

from typing import Any

from weft.capture.jax.calls import LoweringRule, rules_of
from weft.records import dataclass


@dataclass(frozen=True, slots=True)
class StandInDevice:
    """A placeholder for a device where JAX only counts devices."""

    id: int
    platform: str = "weft"
    process_index: int = 0
    device_kind: str = "weft"  # read by JAX 0.11 and later


def by_hand_rules() -> tuple[tuple[Any, LoweringRule], ...]:
    """The lowering of the `custom_partitioning` primitive."""
    from jax._src import custom_partitioning

    return rules_of(custom_partitioning, {"custom_partitioning_p": _lowered})


def _lowered(ctx: Any, *values: Any, **params: Any) -> Any:
    """The custom call that JAX emits for several devices, also where it sees only one."""
    import jax
    from jax._src import custom_partitioning, sharding_impls

    around = ctx.module_context
    mesh = jax.sharding.get_abstract_mesh()
    is_captured = around.lowering_parameters.override_lowering_rules is not None
    is_outside = isinstance(around.axis_context, sharding_impls.ShardingContext)
    # For one device JAX would inline the function and never call the user's partitioner.
    if is_captured and is_outside and mesh.size > 1:
        devices = tuple(map(StandInDevice, range(mesh.size)))
        axes = sharding_impls.ShardingContext(mesh.size, devices, mesh)
        ctx = ctx.replace(module_context=around.replace(axis_context=axes))
    return custom_partitioning._custom_partitioning_lowering_rule(ctx, *values, **params)
