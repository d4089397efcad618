"""`weft ops`: all ops by family, each with an example of its rule and work."""

from __future__ import annotations

import argparse
import difflib
import re
from collections.abc import Iterator, Mapping
from dataclasses import fields
from functools import cache
from types import ModuleType
from typing import Any

from weft.cli.commands.installation.op_examples import example
from weft.cli.parser import Subparsers, command
from weft.cli.screen import (
    first_paragraph,
    plural,
    print_json,
    print_labelled,
    print_table,
    print_text,
    quantity,
)
from weft.columns import Column
from weft.emit.numpy.table import kinds
from weft.errors import WeftError, warn
from weft.ir.module import Node, Region
from weft.ir.op import Op, rule
from weft.ir.work import Work
from weft.ir.write import node_text
from weft.ops import BY_NAME, FAMILIES
from weft.target import OpSupport
from weft.targets import installed_targets

_SIZES = re.compile(r" \{[^}]*\}", re.S)


def add(commands: Subparsers) -> None:
    """Add the command."""
    parser = command(
        commands,
        run,
        "ops",
        "List every op with its factor rule and its work, or explain one of them.",
        "weft ops dot_general",
    )
    parser.add_argument("name", nargs="?", metavar="NAME", help="one op, with or without dialect")
    parser.add_argument("--summary", action="store_true", help="show only the families")
    parser.add_argument("--json", action="store_true", help="print the table as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Show the table, or one op."""
    selection = list(_ops()) if arguments.name is None else _named(arguments.name)
    if arguments.json:
        print_json([describe(family, op) for family, op in selection])
    elif arguments.name is None:
        (_summary if arguments.summary else _table)()
        print_text(total())
    else:
        for family, op in selection:
            _explain(family, op)
    return 0


def _ops() -> Iterator[tuple[ModuleType, type[Op]]]:
    for family in FAMILIES:
        for op in family.OPS:
            yield family, op


def _named(name: str) -> list[tuple[ModuleType, type[Op]]]:
    """The ops of that name, in any dialect."""
    found = [(f, op) for f, op in _ops() if name in (op.name, op.name.partition(".")[2])]
    if found:
        return found
    short = {op.partition(".")[2]: op for op in BY_NAME}
    near = difflib.get_close_matches(name, [*short, *BY_NAME], n=3)
    listed = " or ".join(dict.fromkeys(short.get(n, n) for n in near))
    hint = f"did you mean {listed}?" if near else "`weft ops` lists the known ones"
    raise WeftError(f"unknown op {name!r}", help=hint)


# One op as data


def describe(family: ModuleType, op: type[Op]) -> dict[str, Any]:
    """An op as data."""
    about: dict[str, Any] = {
        "name": op.name,
        "family": _family_name(family),
        "meaning": first_paragraph(op),
        "attributes": {name: text for name, text, _ in _attributes(op)},
    }
    node = example(op.name)
    if isinstance(node, WeftError):
        return about | {"targets": [], "refused": node.message}
    return about | {
        "targets": [target for target in columns() if cell(op, target) != NONE],
        "example": _example_text(node),
        "rule": str(_rule(node)),
        "work": _counts(work(node)),
    }


NONE = "·"


@cache
def tables() -> dict[str, Mapping[type[Op], OpSupport]]:
    """The capability tables of targets with kernels."""
    found, broken = installed_targets()
    for error in broken:
        warn(error.message)
    return {name: target.table for name, target in found.items()}


def columns() -> tuple[str, ...]:
    """The columns of the table: the ways to run an op.

    The reference, which every op has; lockstep in numpy, by stacks or device by device; and
    targets, in kernels of loops or products, alone, or by numpy or the runtime.
    """
    return ("reference", "lockstep", *tables())


def cell(op: type[Op], target: str) -> str:
    """A target's way to run an op, in a word."""
    if target == "reference":
        return "✓"
    if target in tables():
        found = tables()[target][op]
        return NONE if found.how == "unsupported" else str(found)
    kind = kinds()[op.name]
    return NONE if kind == "refused" else kind


def _example_text(node: Node) -> str:
    return node_text(node).replace("\0", "({...})")


def _family_name(family: ModuleType) -> str:
    return family.__name__.rpartition(".")[2]


def _attributes(op: type[Op]) -> list[tuple[str, str, str]]:
    """Name, type and default of every field that is an MLIR attribute."""
    attributes = []
    for name in op.codecs:
        default = f"default {op.defaults[name]!r}" if name in op.defaults else ""
        attributes.append((name, str(op.__annotations__[name]), default))
    return attributes


def _rule(node: Node) -> object:
    return rule(node.op, node.operand_types, node.bodies)


def work(node: Node) -> Work:
    """The work of one execution of a node."""
    bodies = tuple(_region_work(region) for region in node.regions)
    return node.op.work(node.operand_types, node.types, bodies)


def _region_work(region: Region) -> Work:
    total = Work()
    for node in region.nodes:
        total += work(node)
    return total


def _counts(counted: Work) -> dict[str, int]:
    return {f.name: getattr(counted, f.name) for f in fields(counted)}


def _work_text(counted: Work) -> str:
    parts = [
        f"{quantity(counted.flops)} flops" if counted.flops else "",
        f"{quantity(counted.transcendentals)} transc." if counted.transcendentals else "",
        quantity(counted.bytes, "B"),
        f"{quantity(counted.sent, 'B')} sent" if counted.sent else "",
    ]
    return "  ".join(filter(None, parts))


# Display


def _table() -> None:
    work_column = Column("its work", fit="wrap", least=10)
    targets = [Column(name, fit="cut", least=7) for name in columns()[1:]]  # all have a reference
    left = max(16, 38 - 7 * len(targets))  # of 80 columns, beside those of the targets
    shown = (
        Column("op", fit="cut", least=20),
        Column("rule of an example", fit="wrap", least=left),
        work_column,
    )
    for family in FAMILIES:
        print_text(f"{_family_name(family)}: {first_paragraph(family)}")
        print_table((*shown, *targets), [_row(op) for op in family.OPS], _ops_style)
        print()


def _ops_style(row: int, column: int, nth: int) -> str:
    return ("bold", "", "dim")[column] if column < 3 else "green"


def _row(op: type[Op]) -> tuple[str, ...]:
    name = op.name.removeprefix("stablehlo.")
    node = example(op.name)
    if isinstance(node, WeftError):
        return (name, f"refused: {node.message}", "", *[NONE for _ in columns()[1:]])
    factors = _SIZES.sub("", str(_rule(node)), count=1).replace(", ", ",")
    return (name, factors, _work_text(work(node)), *[cell(op, t) for t in columns()[1:]])


def _summary() -> None:
    """One line a family."""
    rows = []
    for family in FAMILIES:
        named = ", ".join(op.name.partition(".")[2] for op in family.OPS[:5])
        more = ", ..." if len(family.OPS) > 5 else ""
        about = f"{first_paragraph(family)}\n{named}{more}"
        rows.append((_family_name(family), str(len(family.OPS)), about))
    table = (Column(), Column(right=True), Column(fit="wrap", least=24))
    print_table(table, rows, lambda row, column, nth: "" if column else "bold cyan")


def total() -> str:
    """`142 ops in 15 families`."""
    refused = sum(isinstance(example(name), WeftError) for name in BY_NAME)
    count = f"{plural(len(BY_NAME), 'op')} in {len(FAMILIES)} families"
    return f"{count}: {len(BY_NAME) - refused} with a reference in numpy, {refused} refused"


def _explain(family: ModuleType, op: type[Op]) -> None:
    print_text(f"{op.name}  {_family_name(family)}\n{first_paragraph(op)}")
    print_labelled(_about(op))


def _about(op: type[Op]) -> Iterator[tuple[str, str]]:
    """The facts about an op as pairs of label and text."""
    for name, text, default in _attributes(op):
        yield "attribute", f"{name}: {text}  {default}".rstrip()
    if op.regions != 0:
        yield "regions", "any number" if op.regions is None else str(op.regions)
    node = example(op.name)
    if isinstance(node, WeftError):
        yield "refused", f"{node.message}; {node.help}"
        return
    yield "example", _example_text(node)
    yield "rule", str(_rule(node))
    yield "work", _work_text(work(node))
    runs = [(target, cell(op, target)) for target in columns()]
    shown = [t if how == "✓" else f"{t} ({how})" for t, how in runs if how != NONE]
    yield "targets", ", ".join(shown)
    for name, table in tables().items():
        if why := table[op].why:
            yield name, f"left to {table[op]}: {why}"
