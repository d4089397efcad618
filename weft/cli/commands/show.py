"""`weft show`: the shardings of a program by layer, and one value's shards as a picture."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from weft.cli.parser import Subparsers, command
from weft.cli.program import add_program, captured_program, check_mesh
from weft.cli.rules import add_rules, read_rules
from weft.cli.screen import plural, print_json, print_spans, width, working
from weft.columns import Column, TableLine, cut, table_lines
from weft.errors import WeftError
from weft.explain import Layer, LayerRow, Reasons, layers, lookup, reasons
from weft.ir.module import Module
from weft.ir.types import TensorType
from weft.machine import bytes_text
from weft.mesh import Mesh, Sharding
from weft.mesh.pieces import pieces
from weft.report.mesh_picture import mesh_picture
from weft.shard import propagate
from weft.shard.closing import unsplit

_LISTED = 32  # the most shards that are listed
_COLUMNS = (
    Column("value", fit="wrap", least=18),
    Column("type", fit="cut", least=10),
    Column("sharding", fit="wrap", least=14),
    Column("on a device"),
    Column("bytes", right=True),
    Column("note", fit="wrap", least=8),
)


def add(commands: Subparsers) -> None:
    """Add the command."""
    parser = command(
        commands,
        run,
        "show",
        "Show how every value of a program is split, by layer, and what a device holds of it.",
        "weft show examples/llama.py:loss --mesh data=2,model=4 --svg pieces.svg",
    )
    add_program(parser)
    add_rules(parser)
    parser.add_argument(
        "--value", metavar="VALUE", help="show the pieces of this value only: %%12, %%arg3, a name"
    )
    parser.add_argument(
        "--svg",
        metavar="OUT.svg",
        help="draw the mesh with the value's pieces on it (by default: of the largest split one)",
    )
    parser.add_argument("--func", metavar="NAME", help="where %%12 is looked up (default: main)")
    parser.add_argument("--all", action="store_true", help="one row for every value, scalars too")
    parser.add_argument("--json", action="store_true", help="print the table as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Show the table, or one value."""
    module = captured_program(arguments.program, arguments.mesh)
    with working(f"sharding {arguments.program}"):
        why = reasons(propagate(module, rules=read_rules(arguments.rules), pads="named"))
    check_mesh(why.propagated.module, arguments.program)
    shown = layers(why, everything=arguments.all)
    if arguments.svg or arguments.value is not None:
        cell = _cell(why, module, arguments.value, arguments.func)
        if arguments.svg:
            _draw(why, cell, Path(arguments.svg))
        if arguments.value is not None:
            _show_pieces(why, cell, arguments.json)
            return 0
    if arguments.json:
        print_json([_layer_json(layer) for layer in shown])
    else:
        _show_table(why, shown)
    return 0


def _cell(why: Reasons, module: Module, value: str | None, function: str | None) -> int:
    """The cell of the named value, or of the largest split one."""
    if value is not None:
        cells = [c for v in lookup(module, value, function) for c in why.cells_of(v)]
        if cells:
            return cells[0]
        raise WeftError(f"{value}: nothing reads it", help="ask for a value that is read")
    sizes: list[tuple[int, int]] = []
    for cell, type in enumerate(why.propagated.graph.types):
        sharding = why.sharding(cell)
        is_split = sharding is not None and any(d.axes for d in sharding.dims)
        if is_split and isinstance(type, TensorType) and why.owners[cell] is not None:
            sizes.append((type.nbytes, -cell))
    if not sizes:
        raise WeftError("no value is split", help="choose one with --value %3")
    return -max(sizes)[1]


# One value


def _held(reasons: Reasons, cell: int) -> tuple[TensorType, Sharding, Mesh]:
    """A value's type and sharding; without one it is replicated on the first mesh."""
    type = reasons.propagated.graph.types[cell]
    if not isinstance(type, TensorType):
        raise WeftError(f"{reasons.label(cell)} is {type}", help="choose a tensor")
    meshes = reasons.propagated.module.meshes
    sharding = reasons.sharding(cell) or unsplit(type, next(iter(meshes)))
    return type, sharding, sharding.resolve(meshes)


def _draw(found: Reasons, cell: int, path: Path) -> None:
    type, sharding, mesh = _held(found, cell)
    try:
        path.write_text(mesh_picture(found.label(cell), type, sharding, mesh), encoding="utf-8")
    except OSError as error:
        raise WeftError(
            f"cannot write {path}: {error.strerror or error}", help="name a file in a folder"
        ) from None


def _show_pieces(why: Reasons, cell: int, as_json: bool) -> None:
    """Print every shard of a value, and the devices that hold it."""
    type, sharding, mesh = _held(why, cell)
    holders: dict[str, list[int]] = {}
    for piece in pieces(type.bounds, sharding, mesh):
        holders.setdefault(str(piece), []).append(piece.device)
    if as_json:
        print_json(
            {
                "value": why.label(cell),
                "type": str(type),
                "sharding": sharding.body(),
                "pieces": [{"slice": s, "devices": d} for s, d in holders.items()],
            }
        )
        return
    print(f"{why.label(cell)}  {type}  {sharding_text(sharding)}")
    width = max(map(len, holders))
    for slices, devices in list(holders.items())[:_LISTED]:
        noun = "device" if len(devices) == 1 else "devices"
        print(f"  {slices:{width}}  {noun} {_listed(devices)}")
    if len(holders) > _LISTED:
        print(f"  and {plural(len(holders) - _LISTED, 'more piece')}")


def _listed(devices: list[int]) -> str:
    shown = ", ".join(map(str, devices[:8]))
    return shown if len(devices) <= 8 else f"{shown} and {len(devices) - 8} more"


# The table


def _show_table(why: Reasons, shown: list[Layer]) -> None:
    """Print the table, with a title over the rows of every layer."""
    lines: list[tuple[str, str]] = []
    for name, mesh in why.propagated.module.meshes.items():
        axes = " x ".join(f"{axis}={size}" for axis, size in mesh.axes)
        lines.append((f"mesh {name}: {axes}, {plural(mesh.size, 'device')}", ""))
    rows = [row for layer in shown for row in layer.rows]
    by_row: dict[int | None, list[TableLine]] = {}
    for line in table_lines(_COLUMNS, [_cells(row) for row in rows], width()):
        by_row.setdefault(line.row, []).append(line)
    lines += [("", ""), *[(str(line), "bold") for line in by_row[None]]]
    first = 0
    for layer in shown:
        lines += [("", ""), (_title(layer), "bold cyan")]
        for number, row in enumerate(layer.rows, first):
            lines += [(str(line), _style(row)) for line in by_row[number]]
        first += len(layer.rows)
    if notes := why.notes():
        lines += [("", ""), (f"{plural(len(notes), 'note')}: `weft why FILE` explains them", "")]
    print_spans([line] for line in lines)


def _title(layer: Layer) -> str:
    alike = f"  (and {len(layer.alike)} alike)" if layer.alike else ""
    held = f"  {bytes_text(layer.bytes)} on a device" if layer.is_signature else ""
    return cut(layer.name, width() - len(alike + held)) + alike + held


def _style(row: LayerRow) -> str:
    return "yellow" if "padded" in row.note or "conflict" in row.note else ""


def _cells(row: LayerRow) -> tuple[str, ...]:
    more = len(row.names) - 1
    name = f"{row.names[0]} {row.op}".strip()
    shape = "x".join(map(str, row.local.bounds)) or "scalar"
    sharding = "" if row.sharding is None else sharding_text(row.sharding)
    named = f"  {name}" + (f" + {more} more" if more else "")
    return named, str(row.type)[7:-1], sharding, shape, bytes_text(row.bytes), row.note


def sharding_text(sharding: Sharding) -> str:
    """`[{data}, {}]`: a sharding without the mesh and quotes."""
    body = ", ".join(str(dim).replace('"', "") for dim in sharding.dims)
    unreduced = ", ".join(map(str, sharding.unreduced)).replace('"', "")
    return f"[{body}]" + (f" unreduced={{{unreduced}}}" if unreduced else "")


def _layer_json(layer: Layer) -> dict[str, Any]:
    return {
        "layer": layer.name,
        "alike": list(layer.alike),
        "rows": [
            {
                "values": list(row.names),
                "op": row.op,
                "type": str(row.type),
                "sharding": None if row.sharding is None else row.sharding.body(),
                "local": str(row.local),
                "bytes": row.bytes,
                "note": row.note,
            }
            for row in layer.rows
        ],
    }
