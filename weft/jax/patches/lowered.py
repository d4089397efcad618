"""Patch of `Lowered.cost_analysis()`."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

from weft.jax.buffers.client import PLATFORM
from weft.patches import replace_in_jax


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
