"""`weft shard`: propagate shardings to every value of a program, or remove all shardings."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import get_args

from weft.cli.files import add_out, put_out
from weft.cli.parser import Subparsers, command
from weft.cli.program import add_program, captured_program, read_program
from weft.cli.rules import add_rules, read_rules
from weft.cli.screen import plural, working
from weft.ir.module import Module, Value, walk
from weft.ir.types import TensorType
from weft.ir.write import SHARDINGS
from weft.mesh import Sharding
from weft.ops.distributed.sharding import Reshard
from weft.shard import PropagationLevel, drop_shardings, shard


def add(commands: Subparsers) -> None:
    """Add the command."""
    parser = command(
        commands,
        run,
        "shard",
        "Propagate the shardings of a program to every value, as Shardy does.",
        "weft shard examples/llama.py:loss --mesh data=2,model=4 -o sharded.mlir",
    )
    add_program(parser)
    add_rules(parser)
    add_out(parser)
    parser.add_argument(
        "--level",
        choices=get_args(PropagationLevel),
        default="user",
        help="how far shardings spread: each level adds to the one before (default: user)",
    )
    parser.add_argument(
        "--drop",
        action="store_true",
        help="instead take every sharding, mesh and sdy op out of the program",
    )


def run(arguments: argparse.Namespace) -> int:
    """Shard the program, and print it or write it."""
    if arguments.drop and (arguments.mesh or arguments.rules):
        arguments.parser.error("--drop takes meshes out, so it goes without --mesh and --rules")
    if arguments.drop:
        result = drop_shardings(read_program(arguments.program))
    else:
        module = captured_program(arguments.program, arguments.mesh)
        rules = read_rules(arguments.rules)
        with working(f"sharding {arguments.program}"):
            result = shard(module, level=arguments.level, rules=rules, pads="named")
    put_out(arguments, result.text(), summary(result))
    return 0


def summary(module: Module) -> Iterator[tuple[str, str]]:
    """Counts of the sharded program, one per line."""
    for name, mesh in module.meshes.items():
        axes = ", ".join(f"{axis}={size}" for axis, size in mesh.axes)
        yield "mesh", f"@{name}: {axes or 'no axes'} ({plural(mesh.size, 'device')})"
    called = sum(f.visibility == "private" for f in module.functions.values())
    shared = f", {called:,} of them called" if called else ""
    yield "functions", f"{len(module.functions):,}{shared}"
    args = [v for f in module.functions.values() for v in f.body.args]
    values = [v for node in module.nodes() for v in node.results]
    if module.meshes:
        yield "arguments", _counted(module, args)
        yield "values", _counted(module, values)
        reshards = sum(
            isinstance(node.op, Reshard) for f in module.functions.values() for node in walk(f.body)
        )
        yield "reshards", f"{reshards:,}"
    else:
        yield "values", f"{len(values):,}"


def _counted(module: Module, values: list[Value]) -> str:
    table = module.tables.get(SHARDINGS, {})
    tensors = [v for v in values if isinstance(v.type, TensorType) and v.type.shape]
    split = [s for v in tensors if isinstance(s := table.get(v), Sharding) and _is_split(s)]
    ways = len(set(split))
    return f"{len(tensors):,} with dims, {len(split):,} of them split in {plural(ways, 'way')}"


def _is_split(sharding: Sharding) -> bool:
    return any(dim.axes for dim in sharding.dims)
