"""Shardy itself, asked of the copy inside jaxlib: the sharding of every value of a program.

`propagated(program)` lists every function and every op in program order twice: right after Shardy's
propagate pass, and after its whole pipeline. The process is started again when a program ends it.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from tests.oracles.process import Crashed, Oracle, serve

ORACLE = Oracle("tests.shard.oracle", timeout=300.0)

# What `sdy-propagation-pipeline` runs up to and including the propagation itself.
IMPORT = (
    "symbol-dce",
    "sdy-lift-inlined-meshes",
    "sdy-remove-size-one-axes",
    "sdy-propagate-sharding-from-func-to-call",
    "sdy-constant-or-scalar-splitter",
    "symbol-dce",
    "sdy-manual-axes-cleanup",
    "sdy-add-data-flow-edges",
    "sdy-flatten-call-graph",
    "symbol-dce",
    "sdy-import-func-calls{add-data-flow-edges-on-named-computations=true}",
    "symbol-dce",
    "sdy-apply-sharding-constraints",
    "sdy-sharding-group-import",
    "sdy-pre-order-funcs",
)
LEVELS = {
    "user": "sdy-user-priority-propagate{keep-sharding-rules=true "
    "propagation-strategy=aggressive run-op-priority-propagation=true}",
    "op": "sdy-op-priority-propagate{keep-sharding-rules=true "
    "propagation-strategy=aggressive run-op-priority-propagation=true}",
    "aggressive": "sdy-aggressive-propagate{keep-sharding-rules=true "
    "propagation-strategy=aggressive}",
    "basic": "sdy-basic-propagate{keep-sharding-rules=true}",
}
PIPELINE = "sdy-propagation-pipeline"

Shardings = tuple[str | None, ...]


@dataclass(frozen=True)
class Listed:
    """One function: the shardings of its arguments and results, and of every op in it."""

    name: str
    args: Shardings
    results: Shardings
    ops: tuple[tuple[str, Shardings], ...]  # outer before inner, terminators left out
    edges: Shardings = ()  # of data-flow edges, in program order


@dataclass(frozen=True)
class Answer:
    """What Shardy made of a program, or why it did not."""

    propagated: tuple[Listed, ...] = ()
    final: tuple[Listed, ...] = ()
    error: str | None = None
    text: str = ""  # the module after propagation, if it was asked for


def propagated(
    program: str | bytes, level: str = "user", *, final: bool = True, text: bool = False
) -> Answer:
    """The sharding of every value of a program, at both stages; `level` chooses the strategy."""
    given = program.encode() if isinstance(program, str) else program
    request = {
        "program": base64.b64encode(given).decode(),
        "level": level,
        "final": final,
        "text": text,
    }
    try:
        answer = ORACLE.ask(request)
    except (Crashed, ValueError) as error:
        return Answer(error=str(error))
    return Answer(
        tuple(_listed(f) for f in answer["propagated"]),
        tuple(_listed(f) for f in answer["final"]),
        text=answer["text"],
    )


def as_listed(text: str) -> tuple[Listed, ...]:
    """A program as it is, with the shardings that are written in it."""
    given = base64.b64encode(text.encode()).decode()
    return tuple(_listed(f) for f in ORACLE.ask({"program": given, "level": None})["final"])


def batch(programs: Iterable[str | bytes], level: str = "user") -> list[Answer]:
    """The answers to many programs, in order."""
    return [propagated(program, level) for program in programs]


def _listed(found: dict[str, Any]) -> Listed:
    ops = tuple((name, tuple(shardings)) for name, shardings in found["ops"])
    edges = tuple(shardings[0] for name, shardings in ops if name == EDGE)
    rest = tuple((name, shardings) for name, shardings in ops if name != EDGE)
    return Listed(found["name"], tuple(found["args"]), tuple(found["results"]), rest, edges)


# Inside the oracle's process

EDGE = "sdy.data_flow_edge"
_QUIET = ("func.return", "stablehlo.return", "sdy.return", "sdy.sharding_group")
_ONE = ("sdy.sharding_constraint", "sdy.reshard", EDGE)
# What these carry is held by edges until the end.
_CARRYING = (
    "stablehlo.while",
    "stablehlo.case",
    "stablehlo.optimization_barrier",
    "sdy.named_computation",
    "sdy.manual_computation",
)


def _sharding(attribute: Any) -> str:
    return str(attribute).removeprefix("#sdy.sharding")


def _per_value(attribute: Any) -> list[str]:
    text = str(attribute)
    inside = text[text.index("[") + 1 : text.rindex("]>")]
    starts = [n for n in range(len(inside)) if inside.startswith("<@", n)]
    ends = [*starts[1:], len(inside)]
    return [inside[a:b].rstrip(", ") for a, b in zip(starts, ends, strict=True)]


def _of_op(operation: Any) -> list[str | None]:
    attributes = operation.attributes
    none: list[str | None] = [None] * len(operation.results)
    if operation.name in _ONE or "out_sharding" in attributes:
        key = "sharding" if operation.name in _ONE else "out_sharding"
        return [_sharding(attributes[key])] if key in attributes else none
    if operation.name == "sdy.manual_computation":
        return [*_per_value(attributes["in_shardings"]), *_per_value(attributes["out_shardings"])]
    if "sdy.sharding" in attributes:
        return [*_per_value(attributes["sdy.sharding"])]
    return none


def _of_ends(operation: Any, key: str, count: int) -> list[str | None]:
    if key not in operation.attributes:
        return [None] * count
    return [
        _sharding(a["sdy.sharding"]) if "sdy.sharding" in a else None
        for a in operation.attributes[key]
    ]


def _walk(block: Any, out: list[tuple[str, list[str | None]]], ended: bool) -> None:
    for view in block.operations:
        operation = view.operation
        if operation.name not in _QUIET:
            silent = not ended and operation.name in _CARRYING
            out.append((operation.name, [] if silent else _of_op(operation)))
        for region in operation.regions:
            for inner in region.blocks:
                _walk(inner, out, ended)


def _functions(module: Any, ended: bool) -> list[dict[str, Any]]:
    found = []
    for view in module.body.operations:
        operation = view.operation
        if operation.name != "func.func" or not operation.regions[0].blocks:
            continue
        ops: list[tuple[str, list[str | None]]] = []
        _walk(operation.regions[0].blocks[0], ops, ended)
        kind = view.type
        found.append(
            {
                "name": view.name.value,
                "args": _of_ends(operation, "arg_attrs", len(kind.inputs)),
                "results": _of_ends(operation, "res_attrs", len(kind.results)),
                "ops": ops,
            }
        )
    return found


def main() -> None:
    """Answer programs with the shardings of their values."""
    from jaxlib.mlir import ir, passmanager

    from weft.capture.stablehlo.mlir_parser import make_context, parse_module

    context = make_context()
    managers: dict[str, Any] = {}

    def run(passes: str, program: bytes) -> Any:
        if passes not in managers:
            managers[passes] = passmanager.PassManager.parse(f"builtin.module({passes})")
        module = parse_module(context, program)
        managers[passes].run(module.operation)
        return module

    def answer(request: dict[str, Any]) -> dict[str, Any]:
        program = base64.b64decode(request["program"])
        with context, ir.Location.unknown():
            if request["level"] is None:
                return {"final": _functions(parse_module(context, program), True)}
            module = run(",".join((*IMPORT, LEVELS[request["level"]])), program)
            made = {
                "propagated": _functions(module, False),
                "final": [],
                "text": str(module) if request["text"] else "",
            }
            if request["final"]:
                made["final"] = _functions(run(PIPELINE, program), True)
            return made

    serve(answer)


if __name__ == "__main__":
    main()
