"""`weft opt`: run optimization passes on a program, by level or by name."""

from __future__ import annotations

import argparse
import sys

from weft.cli.commands.partition import partitioned
from weft.cli.files import add_out, put_out
from weft.cli.parser import Subparsers, command
from weft.cli.passes import add_passes, chosen_level, chosen_machine, chosen_numbers
from weft.cli.program import add_program, read_program
from weft.cli.rules import add_rules, read_rules
from weft.cli.screen import first_paragraph, print_json, print_labelled, print_table, width, working
from weft.cli.script import is_script
from weft.columns import Column, table_text
from weft.cost import Costs
from weft.cost.costs import collective_seconds
from weft.cost.sent import bytes_sent, total_sent
from weft.emit.numpy import NumpyKernels
from weft.errors import WeftError
from weft.executable.memory import MemoryUse
from weft.ir.module import Module
from weft.machine import HOST, Machine, bytes_text, machine, seconds_text
from weft.ops.control import AsyncStart
from weft.optimize import (
    LEVELS,
    PASSES,
    STEPS,
    PassOptions,
    PassRecord,
    named,
    run_passes,
    steps,
)
from weft.optimize.scheduling.schedule import entry_functions
from weft.targets import target_named
from weft.tile import tile


def add(commands: Subparsers) -> None:
    """Add the command."""
    parser = command(
        commands,
        run,
        "opt",
        "Optimize the program of one device: all passes of a level, or passes by name. Functions "
        "of scripts, and programs with --mesh, are sharded and partitioned first.",
        "weft opt examples/llama.py:loss --mesh data=2,model=4 -O2 -o faster.mlir",
    )
    add_program(parser, nargs="?")
    add_rules(parser)
    add_passes(parser)
    parser.add_argument(
        "--pass",
        dest="passes",
        metavar="NAME",
        action="append",
        help="run this pass instead of a level; may be repeated",
    )
    parser.add_argument(
        "--levels", action="store_true", help="show which level runs which pass, and stop"
    )
    parser.add_argument("--times", action="store_true", help="print the time of every pass")
    parser.add_argument(
        "--explain",
        action="store_true",
        help="print what every pass did: nodes, collectives, bytes sent, and predicted seconds of "
        "compute and of collectives one after another",
    )
    add_out(parser)


def run(arguments: argparse.Namespace) -> int:
    """Optimize the program, and print it or write it."""
    if arguments.levels:
        show_levels(arguments.json)
        return 0
    if arguments.program is None:
        arguments.parser.error("the following arguments are required: FILE|script.py:function")
    if arguments.passes and arguments.level is not None:
        arguments.parser.error("--pass names the passes to run, so it goes without a level")
    the_machine = chosen_machine(arguments) or machine(HOST.name)
    options = PassOptions(the_machine, **chosen_numbers(arguments))
    passes = named(arguments.passes) if arguments.passes else steps(chosen_level(arguments))
    module = local_program(arguments.program, arguments.mesh, arguments.rules)
    the_machine.holding(max((mesh.size for mesh in module.meshes.values()), default=1))
    ran: list[PassRecord] = []
    with working(f"optimizing {arguments.program}"):
        result = run_passes(module, passes, options, ran.append)
    if arguments.memory or arguments.machine:
        for name in entry_functions(result):
            memory_of(result, name).fits(the_machine)
    out = sys.stderr if arguments.out is None else sys.stdout
    if arguments.times:
        print(times_text(ran), file=out)
    if arguments.explain:
        print(effects_text(module, ran, the_machine), file=out)
    put_out(arguments, result.text(), summary(module, result, the_machine))
    return 0


def local_program(program: str, mesh: str | None, rules: str | None) -> Module:
    """The local program to optimize; a function, or a program with --mesh, is partitioned first."""
    module = read_program(program, mesh)
    if mesh is None and not is_script(program):
        return module
    return partitioned(module, read_rules(rules))


def show_levels(as_json: bool) -> None:
    """Print the passes of each level, in running order, with a sentence each."""
    if as_json:
        steps = [{"pass": run.__name__, "least": least} for run, least in STEPS]
        print_json({"levels": LEVELS, "steps": steps})
        return
    print_labelled([(f"-O{number}", what) for number, what in LEVELS.items()])
    print()
    columns = (Column(), Column(), Column(fit="wrap", least=24))
    marked = [
        ("  ".join("x" if number >= least else "." for number in LEVELS), run)
        for run, least in STEPS
    ]
    print_table(columns, [(marks, run.__name__, first_paragraph(run)) for marks, run in marked])
    print("\nwith --pass only:")
    named_only = [run for run in PASSES if all(run is not step for step, _ in STEPS)]
    print_labelled([(run.__name__, first_paragraph(run)) for run in named_only])


def times_text(ran: list[PassRecord]) -> str:
    """A line for every pass: its milliseconds, the verifier's, and whether it changed anything."""
    columns = (Column("pass"), Column("ms", right=True), Column("to verify", right=True), Column())
    rows = [
        (
            r.name,
            f"{1e3 * r.seconds:.1f}",
            f"{1e3 * r.verifying:.1f}",
            "" if r.changed else "nothing to do",
        )
        for r in ran
    ]
    total = sum(r.seconds + r.verifying for r in ran)
    return table_text(columns, [*rows, ("in all", f"{1e3 * total:.1f}", "", "")])


def effects_text(module: Module, ran: list[PassRecord], the_machine: Machine) -> str:
    """A table of the passes with an effect: counts, bytes sent and predicted seconds after each."""
    columns = [Column("pass"), Column("nodes", right=True), Column("collectives", right=True)]
    columns += [Column(head, right=True) for head in ("sent", "compute", "collectives' time")]
    before = _effects(module, the_machine)
    rows, idle = [("as partitioned", *before, "")], []
    for done in ran:
        after = _effects(done.module, the_machine) if done.changed else before
        if done.changed:
            rows.append((done.name, *after, first_paragraph(_PASS_OF[done.name])))
        else:
            idle.append(done.name)
        before = after
    text = table_text([*columns, Column("what it does", fit="wrap", least=24)], rows, width())
    names = ", ".join(dict.fromkeys(idle))
    return f"{text}\nfor {the_machine.name}; nothing to do: {names or 'none'}"


_PASS_OF = {run.__name__: run for run in PASSES}


def _effects(module: Module, chosen: Machine) -> tuple[str, ...]:
    """Counts and predicted seconds of a program, as cells."""
    costs, travel = Costs(module, chosen), 0.0
    for name in entry_functions(module):
        travel += collective_seconds(module, costs, name)
    total = sum(costs.totals.function(name) for name in entry_functions(module))
    rows = [row for name in entry_functions(module) for row in bytes_sent(module, name)]
    # An asynchronous start counts as its issue; its transfer is counted with the collectives.
    compute = total if any(isinstance(n.op, AsyncStart) for n in module.nodes()) else total - travel
    return (
        f"{sum(1 for _ in module.nodes()):,}",
        f"{sum(row.count for row in rows):,}",
        bytes_text(round(total_sent(rows))),
        seconds_text(max(0.0, compute)),
        seconds_text(travel),
    )


def memory_of(module: Module, function: str) -> MemoryUse:
    """The memory of one device for a run of a function."""
    target = target_named(None, runs=False)
    return tile(module, function, host=NumpyKernels(), target=target).memory()


def summary(before: Module, after: Module, the_machine: Machine) -> list[tuple[str, str]]:
    """Counts before and after optimization, one per line."""
    counts = [sum(1 for _ in module.nodes()) for module in (before, after)]
    met = [sum(node.op.collective for node in module.nodes()) for module in (before, after)]
    lines = [
        ("nodes", f"{counts[0]:,} -> {counts[1]:,}"),
        ("collectives", f"{met[0]:,} -> {met[1]:,}"),
    ]
    for name in entry_functions(after):
        try:
            use = memory_of(after, name)
        except WeftError as error:  # a program that is not partitioned yet
            lines.append((name, f"memory is not known: {error.message}"))
            continue
        most = f"{bytes_text(use.peak)} of {bytes_text(the_machine.memory)} a device"
        lines.append((name, f"{most}: {memory_parts(use)}"))
    return lines


def memory_parts(use: MemoryUse) -> str:
    """The parts of a device's memory."""
    parts = [
        f"{bytes_text(size)} {what}"
        for what, size in (
            ("arguments", use.arguments),
            ("results", use.results),
            ("constants", use.constants),
            ("temporaries", use.temporaries),
        )
        if size
    ]
    shared = f", {bytes_text(use.aliased)} of them donated" if use.aliased else ""
    return f"{', '.join(parts) or 'nothing'}{shared}"
