"""JAX's reading of its own notation for sharding rules, as the rule that jaxlib then prints."""

from __future__ import annotations

from typing import Any

from tests.oracles.process import Oracle, serve

ORACLE = Oracle("tests.shard.jax_rules")


def read_by_jax(rule: str, operands: list[str], results: list[str], **options: Any) -> str:
    """The rule as Shardy writes it; a ValueError if JAX refuses it."""
    return str(ORACLE.ask([rule, operands, results, options]))


def main() -> None:
    """Answer rules in JAX's notation, with types, by rules in Shardy's."""
    from jax._src.custom_partitioning_sharding_rule import (
        sdy_sharding_rule_to_mlir,
        str_to_sdy_sharding_rule,
    )
    from jaxlib.mlir import ir

    from weft.capture.stablehlo.mlir_parser import make_context

    context = make_context()

    def answer(request: list[Any]) -> str:
        rule, operands, results, options = request
        given = {k: tuple(v) if isinstance(v, list) else v for k, v in options.items()}
        with context, ir.Location.unknown():
            read = str_to_sdy_sharding_rule(rule, **given)
            types = [[ir.Type.parse(t) for t in side] for side in (operands, results)]
            text = str(sdy_sharding_rule_to_mlir(read, *types))
        return text.removeprefix("#sdy.op_sharding_rule<").removesuffix(", custom>")

    serve(answer)


if __name__ == "__main__":
    main()
