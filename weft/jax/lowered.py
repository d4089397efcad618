"""What JAX asks about a program that is not compiled yet: its costs."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

from weft.jax.client import PLATFORM


def count_lowered() -> None:
    """Have `Lowered.cost_analysis()` count programs for Weft, as `Compiled.cost_analysis()` does.

    JAX asks the clients of its own platforms alone. What is counted is the whole program, before
    it is split and optimized.
    """
    from jax._src.interpreters.pxla import MeshComputation

    theirs: Callable[[Any], dict[str, float]] = MeshComputation.cost_analysis
    if getattr(theirs, "knows_weft", False):
        return

    def cost_analysis(lowering: Any) -> dict[str, float]:
        if lowering.compile_args["backend"].platform != PLATFORM:
            return theirs(lowering)
        # Here: jax.devices() does not need them.
        from weft.capture.normalize.tokens import tokens_as_values
        from weft.capture.stablehlo.bytecode import read_bytecode
        from weft.jax.counted import counted

        program = io.BytesIO()
        lowering.stablehlo().operation.write_bytecode(file=program)
        counts = counted(tokens_as_values(read_bytecode(program.getvalue())))
        return {name: float(count) for name, count in counts.items()}

    cost_analysis.knows_weft = True  # type: ignore[attr-defined]  # so that it is done once
    MeshComputation.cost_analysis = cost_analysis
