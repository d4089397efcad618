"""`weft opt`: run optimization passes on a program, by level or by name."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from weft.cli.files import write
from weft.cli.parser import Subparsers, command
from weft.cli.partition import partitioned
from weft.cli.passes import add_passes, chosen_level, chosen_machine, chosen_numbers
from weft.cli.program import add_program, read_program
from weft.cli.rules import add_rules, read_rules
from weft.cli.script import is_script
from weft.ir.module import Module
from weft.machine import HOST, Machine, bytes_text
from weft.optimize import (
    LEVELS,
    PASSES,
    STEPS,
    MemoryPlan,
    PassOptions,
    Ran,
    named,
    plan_memory,
    run_passes,
    steps,
)


def add(commands: Subparsers) -> None:
    """Add the command."""
    parser = command(
        commands,
        run,
        "opt",
        "Optimize the program of one device: all passes of a level, or passes by name. Functions "
        "of scripts, and programs with --mesh, are sharded and partitioned first.",
        "weft opt examples/llama.py:loss --mesh data=2,model=4 -O2 --times -o faster.mlir",
    )
    add_program(parser, nargs="?")
    add_rules(parser)
    add_passes(parser)
    parser.add_argument(
        "--pass",
        dest="passes",
        metavar="NAME",
        action="append",
        help="run this pass, and no level; may be given several times",
    )
    parser.add_argument(
        "--levels", action="store_true", help="show which level runs which pass, and stop"
    )
    parser.add_argument("--times", action="store_true", help="say how long every pass took")
    parser.add_argument(
        "-o", "--out", metavar="OUT.mlir", help="write the program to this file, and a summary here"
    )


def run(arguments: argparse.Namespace) -> int:
    """Optimize the program, and print it or write it."""
    if arguments.levels:
        show_levels()
        return 0
    if arguments.program is None:
        arguments.parser.error("the following arguments are required: FILE|script.py:function")
    if arguments.passes and arguments.level is not None:
        arguments.parser.error("--pass names the passes to run, so it goes without a level")
    chosen = chosen_machine(arguments) or HOST
    options = PassOptions(chosen, **chosen_numbers(arguments))
    passes = named(arguments.passes) if arguments.passes else steps(chosen_level(arguments))
    module = local_program(arguments.program, arguments.mesh, arguments.rules)
    ran: list[Ran] = []
    made = run_passes(module, passes, options, ran.append)
    if arguments.memory or arguments.machine:
        for plan in plans(made):
            plan.fits(chosen)
    out = sys.stderr if arguments.out is None else sys.stdout
    if arguments.times:
        print(times_text(ran), file=out)
    if arguments.out is None:
        print(made.text(), end="")
        return 0
    write(Path(arguments.out), made.text())
    for name, what in summary(module, made, chosen):
        print(f"{name:<11} {what}")
    print(f"{'written':<11} {arguments.out}")
    return 0


def local_program(program: str, mesh: str | None, rules: str | None) -> Module:
    """What is optimized: a file as it is; a function, or what has a --mesh, partitioned first."""
    module = read_program(program, mesh)
    if mesh is None and not is_script(program):
        return module
    return partitioned(module, read_rules(rules))


def show_levels() -> None:
    """Which pass runs at which level, in running order, with what it does."""
    for number, what in LEVELS.items():
        print(f"-O{number}  {what}")
    print()
    width = max(len(run.__name__) for run in PASSES)
    for run, least in STEPS:
        marks = "  ".join("x" if number >= least else "." for number in LEVELS)
        print(f"{marks}  {run.__name__:<{width}}  {_sentence(run)}")
    named_only = [run for run in PASSES if all(run is not step for step, _ in STEPS)]
    print("\nwith --pass only:")
    for run in named_only:
        print(f"{run.__name__:<{width}}  {_sentence(run)}")


def _sentence(thing: object) -> str:
    return " ".join((thing.__doc__ or "").partition("\n\n")[0].split())


def times_text(ran: list[Ran]) -> str:
    """A line for every pass: its milliseconds, the verifier's, and whether it did a thing."""
    width = max((len(r.name) for r in ran), default=0)
    lines = [
        f"{r.name:<{width}}  {1e3 * r.seconds:8.1f} ms  {1e3 * r.verifying:6.1f} ms to verify"
        + ("" if r.changed else "  nothing to do")
        for r in ran
    ]
    total = sum(r.seconds + r.verifying for r in ran)
    return "\n".join([*lines, f"{'in all':<{width}}  {1e3 * total:8.1f} ms"])


def plans(module: Module) -> list[MemoryPlan]:
    """The memory plan of every function that a host may call."""
    called = [name for name, f in module.functions.items() if f.visibility != "private"]
    return [plan_memory(module, name) for name in called]


def summary(before: Module, after: Module, chosen: Machine) -> list[tuple[str, str]]:
    """What became of the program, a line for each thing that can be counted."""
    counts = [sum(1 for _ in module.nodes()) for module in (before, after)]
    met = [sum(node.op.collective for node in module.nodes()) for module in (before, after)]
    lines = [
        ("nodes", f"{counts[0]:,} -> {counts[1]:,}"),
        ("collectives", f"{met[0]:,} -> {met[1]:,}"),
    ]
    for plan in plans(after):
        most = f"{bytes_text(plan.peak)} of {bytes_text(chosen.memory)} a device"
        lines.append((plan.function.name, f"{most}: {memory_parts(plan)}"))
    return lines


def memory_parts(plan: MemoryPlan) -> str:
    """What a device's bytes hold."""
    parts = [
        f"{bytes_text(size)} {what}"
        for what, size in (
            ("arguments", plan.arguments),
            ("results", plan.results),
            ("constants", plan.constants),
            ("temporaries", plan.temporaries),
        )
        if size
    ]
    shared = f", {bytes_text(plan.aliased)} of them donated" if plan.aliased else ""
    return f"{', '.join(parts) or 'nothing'}{shared}"
