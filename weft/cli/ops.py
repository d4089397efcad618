"""`weft ops`: what every op is, by family, with an example of its rule and its work."""

from __future__ import annotations

import argparse
import difflib
import re
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING, Any

from weft.cli.op_examples import example
from weft.cli.parser import Subparsers, command
from weft.cli.screen import console, plural, print_json, quantity
from weft.emit.numpy.table import kinds
from weft.errors import WeftError, warn
from weft.ir.module import Node, Region
from weft.ir.op import Op, rule
from weft.ir.work import Work
from weft.ir.write import node_text
from weft.ops import BY_NAME, FAMILIES
from weft.target import Cell
from weft.targets import installed_targets

if TYPE_CHECKING:
    from rich.console import Console

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
    chosen = list(_ops()) if arguments.name is None else _named(arguments.name)
    if arguments.json:
        print_json([describe(family, op) for family, op in chosen])
    elif arguments.name is None:
        screen = console()
        (_summary if arguments.summary else _table)(screen)
        screen.print(f"[bold]{total()}[/]")
    else:
        screen = console()
        for family, op in chosen:
            _explain(screen, family, op)
    return 0


def _ops() -> Iterator[tuple[ModuleType, type[Op]]]:
    for family in FAMILIES:
        for op in family.OPS:
            yield family, op


def _named(name: str) -> list[tuple[ModuleType, type[Op]]]:
    """The op of that name; several if it stands in more than one dialect."""
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
    """Everything `weft ops` knows of an op."""
    about: dict[str, Any] = {
        "name": op.name,
        "family": _family_name(family),
        "meaning": _sentence(op),
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
def tables() -> dict[str, Mapping[type[Op], Cell]]:
    """What targets that have kernels say of every op."""
    found, broken = installed_targets()
    for error in broken:
        warn(error.message)
    return {name: target.table for name, target in found.items()}


def columns() -> tuple[str, ...]:
    """What runs ops.

    The reference, which every op has; lockstep in numpy, by stacks or device by device; and
    targets, in kernels of loops or products, alone, or by numpy or the runtime.
    """
    return ("reference", "lockstep", *tables())


def cell(op: type[Op], target: str) -> str:
    """How a target runs an op, in a word."""
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


def _sentence(thing: object) -> str:
    """The first paragraph of a docstring, as one line."""
    return " ".join((thing.__doc__ or "").partition("\n\n")[0].split())


def _attributes(op: type[Op]) -> list[tuple[str, str, str]]:
    """Name, type and default of every field that is an MLIR attribute."""
    found = []
    for field in fields(op):  # type: ignore[arg-type]  # every op is a dataclass
        if field.name in op.codecs:
            default = "" if field.default is MISSING else f"default {field.default!r}"
            found.append((field.name, str(field.type), default))
    return found


def _rule(node: Node) -> object:
    return rule(node.op, node.operand_types, node.bodies)


def work(node: Node) -> Work:
    """What a node has to do, once."""
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


# What is shown


def _table(screen: Console) -> None:
    from rich.table import Table
    from rich.text import Text

    for family in FAMILIES:
        table = Table(
            title=Text.assemble(
                (_family_name(family), "bold cyan"), "  ", (_sentence(family), "dim italic")
            ),
            title_justify="left",
            title_style="",
            box=None,
            header_style="dim",
            padding=(0, 2, 0, 0),
            expand=True,
        )
        table.add_column("op", no_wrap=True, min_width=24)
        table.add_column("rule of an example", ratio=1, overflow="fold")
        table.add_column("its work", no_wrap=True, min_width=16)
        for target in columns():
            table.add_column(target, justify="center", width=max(len(target), 10))
        for op in family.OPS:
            table.add_row(*_row(op))
        screen.print(table)
        screen.print()


def _row(op: type[Op]) -> list[Any]:
    from rich.text import Text

    name = _op_name(op.name.removeprefix("stablehlo."))
    node = example(op.name)
    if isinstance(node, WeftError):
        return [name, Text(f"refused: {node.message}", "yellow"), "", *[NONE for _ in columns()]]
    factors = Text(_SIZES.sub("", str(_rule(node)), count=1).replace(", ", ","))
    return [
        name,
        factors,
        Text(_work_text(work(node)), "dim"),
        *[f"[green]{cell(op, t)}[/]" for t in columns()],
    ]


def _summary(screen: Console) -> None:
    """One line a family."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(style="bold cyan")
    table.add_column(justify="right", style="bold")
    table.add_column(overflow="fold")
    for family in FAMILIES:
        named = ", ".join(op.name.partition(".")[2] for op in family.OPS[:5])
        more = ", ..." if len(family.OPS) > 5 else ""
        about = Text.assemble(_sentence(family), (f"\n{named}{more}", "dim"))
        table.add_row(_family_name(family), str(len(family.OPS)), about)
    screen.print(table)


def total() -> str:
    """`142 ops in 15 families`."""
    refused = sum(isinstance(example(name), WeftError) for name in BY_NAME)
    count = f"{plural(len(BY_NAME), 'op')} in {len(FAMILIES)} families"
    return f"{count}: {len(BY_NAME) - refused} with a reference in numpy, {refused} refused"


def _op_name(name: str) -> Any:
    from rich.text import Text

    dialect, dot, short = name.rpartition(".")
    return Text.assemble((dialect + dot, "dim"), (short, "bold"))


def _explain(screen: Console, family: ModuleType, op: type[Op]) -> None:
    from rich.table import Table
    from rich.text import Text

    screen.print(_op_name(op.name), Text(f"  {_family_name(family)}", "cyan"))
    screen.print(Text(_sentence(op)))
    rows = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    rows.add_column(style="dim", no_wrap=True)
    rows.add_column(overflow="fold")
    for name, text, default in _attributes(op):
        rows.add_row(
            "attribute", Text.assemble((name, "bold"), f": {text}", (f"  {default}", "dim"))
        )
    if op.regions != 0:
        rows.add_row("regions", "any number" if op.regions is None else str(op.regions))
    node = example(op.name)
    if isinstance(node, WeftError):
        rows.add_row("refused", Text(f"{node.message}; {node.help}", "yellow"))
    else:
        rows.add_row("example", Text(_example_text(node)))
        rows.add_row("rule", Text(str(_rule(node))))
        rows.add_row("work", Text(_work_text(work(node))))
        runs = [(target, cell(op, target)) for target in columns()]
        shown = [t if how == "✓" else f"{t} ({how})" for t, how in runs if how != NONE]
        rows.add_row("targets", ", ".join(shown))
        for name, table in tables().items():
            if why := table[op].why:
                rows.add_row(name, Text(f"left to {table[op]}: {why}"))
    screen.print(rows)
