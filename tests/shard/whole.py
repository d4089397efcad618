"""Shardy's whole pipeline, asked of the copy inside jaxlib: its module beside Weft's, by lines."""

from __future__ import annotations

import difflib
import re
from typing import Any

from tests.oracles.process import Crashed, Oracle, serve
from tests.shard.oracle import IMPORT, LEVELS, PIPELINE
from weft.ir.module import Module
from weft.shard import PropagationLevel, shard

ORACLE = Oracle("tests.shard.whole", timeout=300.0)

# What `sdy-propagation-pipeline` runs after propagation.
EXPORT = (
    "sdy-export-named-computations",
    "sdy-propagate-to-func-results",
    "sdy-unflatten-call-graph{dedup-functions-fully=false}",
    "symbol-dce",
    "sdy-insert-func-call-reshards",
    "func.func(sdy-constant-or-scalar-merger)",
    "func.func(sdy-sink-data-flow-edges)",
    "sdy-remove-sharding-groups",
    "func.func(sdy-sharding-constraint-to-reshard)",
    "sdy-update-non-divisible-input-output-shardings",
    "sdy-remove-sub-axes-in-input-output-shardings",
    "sdy-close-shardings",
    "func.func(sdy-insert-explicit-reshards{enable-full-version=false})",
    "canonicalize{enable-patterns={sdy-collective}}",
    "func.func(sdy-drop-sharding-rules)",
)
# Shardy notes on every mesh what StableHLO would call it.
_NOTE = re.compile(r" \{stablehlo\.mesh = [^\n]*\}(?= : \(\) -> \(\))")


class Refused(Exception):
    """Shardy does not take the program, or ends the process that it runs in."""


def exported(text: str, level: PropagationLevel = "user") -> str:
    """A program after Shardy's pipeline, in MLIR's generic form."""
    passes = PIPELINE if level == "user" else ",".join((*IMPORT, LEVELS[level], *EXPORT))
    return _asked(text, passes)


def generic(text: str) -> str:
    """A program in MLIR's generic form."""
    return _asked(text, "")


def _asked(text: str, passes: str) -> str:
    try:
        return _NOTE.sub("", str(ORACLE.ask([text, passes])))
    except (Crashed, ValueError) as error:
        raise Refused(str(error)) from None


def differences(module: Module, level: PropagationLevel = "user") -> list[str]:
    """The lines in which Weft's result differs from Shardy's; nothing if it does not."""
    theirs = exported(module.text(), level)
    ours = generic(shard(module, level=level).text())
    if ours == theirs:
        return []
    lines = difflib.unified_diff(
        theirs.splitlines(), ours.splitlines(), "Shardy", "Weft", lineterm="", n=1
    )
    return [line[:400] for line in lines]


def main() -> None:
    """Answer programs with their generic form after some passes."""
    from jaxlib.mlir import ir, passmanager

    from weft.capture.stablehlo.mlir_parser import make_context

    context = make_context()

    def answer(request: list[Any]) -> str:
        text, passes = request
        with context, ir.Location.unknown():
            module = ir.Module.parse(text)
            if passes:
                passmanager.PassManager.parse(f"builtin.module({passes})").run(module.operation)
            return str(
                module.operation.get_asm(print_generic_op_form=True, enable_debug_info=False)
            )

    serve(answer)


if __name__ == "__main__":
    main()
