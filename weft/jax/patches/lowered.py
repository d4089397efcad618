"""What JAX asks about a program that is not compiled yet: its costs."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

from weft.jax.buffers.client import PLATFORM
from weft.patches import replace_in_jax


def count_lowered() -> None:
    """Have `Lowered.cost_analysis()` count programs for Weft, as `Compiled.cost_analysis()` does.

    JAX asks the clients of its own platforms alone. What is counted is the whole program, before
    it is split and optimized.
    """
    replace_in_jax("jax._src.interpreters.pxla:MeshComputation.cost_analysis", _counting)


def _counting(theirs: Callable[[Any], dict[str, float]]) -> Callable[[Any], dict[str, float]]:
    def cost_analysis(lowering: Any) -> dict[str, float]:
        if lowering.compile_args["backend"].platform != PLATFORM:
            return theirs(lowering)
        # Here: jax.devices() does not need them.
        from weft.capture.normalize.tokens import tokens_as_values
        from weft.capture.stablehlo.bytecode import read_bytecode
        from weft.cost.counted import counted

        program = io.BytesIO()
        lowering.stablehlo().operation.write_bytecode(file=program)
        counts = counted(tokens_as_values(read_bytecode(program.getvalue())))
        return {name: float(count) for name, count in counts.items()}

    return cost_analysis
