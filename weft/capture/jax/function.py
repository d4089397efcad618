"""JAX functions as sources: traced once for each cache key of arguments."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from typing import Any

from weft.capture.captured import Captured
from weft.capture.jax.inline import inlined, is_traced
from weft.capture.jax.trace import CallArguments, capture_flat, flatten, quick_key, settings_of_jax
from weft.capture.jax.values import from_physical, is_changed, to_physical
from weft.capture.options import CallOptions, check_apart
from weft.capture.shardings import Spelled
from weft.capture.signature import parameters_of
from weft.capture.source import no_seed, no_update
from weft.mesh.plans import ShardingPlan
from weft.records import dataclass


def jax_function(program: object, options: CallOptions) -> JaxFunction | None:
    """The source of a callable; None for other objects."""
    if not callable(program):
        return None
    check_apart(options.static_argnums, options.donate_argnums)
    return JaxFunction(
        program,
        options.mesh,
        options.in_shardings,
        options.out_shardings,
        options.donate_argnums,
        options.static_argnums,
        options.plan if isinstance(options.plan, ShardingPlan) else None,
    )


@dataclass(frozen=True, slots=True)
class JaxFunction:
    """A JAX function with the options of jax.jit."""

    function: Callable[..., Any]
    mesh: object
    in_shardings: Spelled
    out_shardings: Spelled
    donate_argnums: tuple[int, ...]
    static_argnums: tuple[int, ...]
    plan: ShardingPlan | None = None

    @property
    def name(self) -> str:
        return str(getattr(self.function, "__name__", type(self.function).__name__))

    @property
    def needs_arguments(self) -> bool:
        try:
            return bool(inspect.signature(self.function).parameters)
        except (TypeError, ValueError):
            return True

    takes_tensors = False

    def flatten(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Hashable, CallArguments]:
        call = flatten(args, kwargs, self.donate_argnums, self.static_argnums)
        return call.key, call

    def quick_key(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Hashable, Sequence[Any]]:
        return quick_key(args, kwargs, self.static_argnums)

    def settings(self) -> Callable[[], Hashable] | None:
        return None if self.static_argnums != () else settings_of_jax()

    def capture(self, call: CallArguments) -> Captured:
        shardings = (self.in_shardings, self.out_shardings)
        captured = capture_flat(self.function, call, self.mesh, *shardings, plan=self.plan)
        known = parameters_of(self.function, call.positions, call.static, call.keywords)
        return replace(captured, parameters=known, narrows=not call.is_wide)

    to_program = staticmethod(to_physical)
    to_user = staticmethod(from_physical)
    is_converted = staticmethod(is_changed)

    seed, update = no_seed, no_update

    def is_traced(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        return is_traced((args, kwargs))

    def inlined(self) -> Callable[..., Any]:
        shardings = (self.in_shardings, self.out_shardings)
        return inlined(self.function, self.mesh, *shardings, self.static_argnums)
