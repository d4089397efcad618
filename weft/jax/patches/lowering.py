"""Lowering rules of JAX's primitives for Weft: callbacks, decompositions, and donation."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

from weft.jax.buffers.client import PLATFORM
from weft.jax.patches.caching import use_cache
from weft.jax.patches.effects import call_back_at_once, emit_callbacks
from weft.jax.patches.interrupts import hold_interrupted
from weft.patches import replace_in_jax, table_of_jax


class _Rules(dict[Any, Any]):
    """The table of lowering rules for Weft, including those of JAX modules imported late.

    A user's primitive with platform-specific rules only is lowered as for CPUs. The rules are
    imported at the first lookup: jax.devices() does not need them.
    """

    known: object = None  # rules registered so far

    def __contains__(self, primitive: object) -> bool:
        from weft.capture.jax.lowerings import lowering_rules

        rules = lowering_rules()
        if rules is not self.known:
            self._enter(rules)
            self.known = rules
        return super().__contains__(primitive) or self._is_as_on_cpu(primitive)

    def _is_as_on_cpu(self, primitive: Any) -> bool:
        """Whether a primitive has platform rules only, one for CPUs; registers that one."""
        from jax._src.interpreters import mlir

        on_cpu = mlir._platform_specific_lowerings["cpu"].get(primitive)
        if on_cpu is None or primitive in mlir._lowerings:
            return False
        self[primitive] = on_cpu
        return True

    def _enter(self, rules: Any) -> None:
        from jax._src import debugging
        from jax._src.interpreters import mlir

        from weft.jax.patches.exporting import allow_own_calls, call_as_on_cpu
        from weft.jax.questions.inspecting import inspect_lowering

        for primitive, rule in (*rules, (debugging.inspect_sharding_p, inspect_lowering)):
            mlir.register_lowering(primitive, rule, platform=PLATFORM)
        allow_own_calls()
        call_as_on_cpu()


def register_lowerings() -> None:
    """Register lowering rules where JAX has no platform-independent one."""
    rules = table_of_jax("jax._src.interpreters.mlir:_platform_specific_lowerings")
    if not isinstance(rules[PLATFORM], _Rules):
        rules[PLATFORM] = _Rules()
    call_back_at_once()
    emit_callbacks()
    use_cache()
    hold_interrupted()
    count_lowered()
    donating = table_of_jax("jax._src.interpreters.mlir:_platforms_with_donation")
    if PLATFORM not in donating:
        donating.append(PLATFORM)


def count_lowered() -> None:
    """Make `Lowered.cost_analysis()` work for Weft, like `Compiled.cost_analysis()`.

    JAX supports its own platforms only. The counts are of the global program, before partitioning
    and optimization.
    """
    replace_in_jax("jax._src.interpreters.pxla:MeshComputation.cost_analysis", _counting)


def _counting(theirs: Callable[[Any], dict[str, float]]) -> Callable[[Any], dict[str, float]]:
    def cost_analysis(lowering: Any) -> dict[str, float]:
        if lowering.compile_args["backend"].platform != PLATFORM:
            return theirs(lowering)
        # imported late: jax.devices() does not need them
        from weft.capture.normalize.tokens import tokens_as_values
        from weft.capture.stablehlo.bytecode import read_bytecode
        from weft.cost.counted import counts_by_name

        program = io.BytesIO()
        lowering.stablehlo().operation.write_bytecode(file=program)
        counts = counts_by_name(tokens_as_values(read_bytecode(program.getvalue())))
        return {name: float(count) for name, count in counts.items()}

    return cost_analysis
