"""Shardy's own sharding rules, asked of the copy inside jaxlib."""

from __future__ import annotations

from typing import Any

from tests.oracles.process import Oracle, serve

ORACLE = Oracle("tests.oracles.shardy")


def rules(text: str) -> list[tuple[str, str | None]]:
    """For every op in the functions of a module, in order, its name and Shardy's rule or None."""
    return [(name, rule) for name, rule in ORACLE.ask(text)]


def main() -> None:
    """Answer module texts with the rules of their ops."""
    from jaxlib.mlir import ir, passmanager

    from weft.capture.stablehlo.mlir_parser import make_context

    context = make_context()

    def listed(block: Any, out: list[tuple[str, str | None]]) -> None:
        for view in block.operations:
            operation = view.operation
            found = operation.attributes
            rule = str(found["sdy.sharding_rule"]) if "sdy.sharding_rule" in found else None
            out.append((operation.name, rule))
            for region in operation.regions:
                for inner in region.blocks:
                    listed(inner, out)

    def answer(text: str) -> list[tuple[str, str | None]]:
        with context, ir.Location.unknown():
            module = ir.Module.parse(text)
            passes = "builtin.module(func.func(sdy-populate-op-sharding-rules))"
            passmanager.PassManager.parse(passes).run(module.operation)
            out: list[tuple[str, str | None]] = []
            listed(module.body, out)
            return [found for found in out if found[0] not in ("func.func", "sdy.mesh")]

    serve(answer)


if __name__ == "__main__":
    main()
