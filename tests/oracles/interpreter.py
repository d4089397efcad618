"""StableHLO's own reference interpreter, asked of the copy inside jaxlib."""

from __future__ import annotations

from typing import Any

from tests.oracles.process import Oracle, serve
from weft.ir.dense import parse_dense
from weft.ir.types import Array

ORACLE = Oracle("tests.oracles.interpreter")


def evaluated(text: str) -> list[Array]:
    """The results of a module whose main takes no arguments."""
    return [parse_dense(part).array for part in ORACLE.ask(text)]


def main() -> None:
    """Answer module texts with the results of their main."""
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import stablehlo

    from weft.capture.stablehlo.mlir_parser import make_context

    context = make_context()
    context.enable_multithreading(True)  # programs that meet run side by side

    def answer(text: str) -> list[str]:
        with context, ir.Location.unknown():
            module = ir.Module.parse(text)
            results: list[Any] = stablehlo.eval_module(module, [])
            return [str(result) for result in results]

    serve(answer)


if __name__ == "__main__":
    main()
