"""`weft plan`: the mesh and the shardings of a program with the least predicted time."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from weft.capture import capture
from weft.cli.parser import Subparsers, command, natural
from weft.cli.screen import has_rich, plural, print_json, print_table, print_text
from weft.cli.script import load_script
from weft.columns import Column
from weft.errors import WeftError
from weft.machine import bytes_text, machine, seconds_text
from weft.mesh.plans import EXPORTS, ShardingPlan
from weft.planner.search import KEPT, TRIES, SearchProgress, plan_captured

_COLUMNS = (
    Column("plan", right=True),
    Column("mesh"),
    Column("step", right=True),
    Column("products", right=True),
    Column("other kernels", right=True),
    Column("exposed", right=True),
    Column("memory", right=True),
)


def add(commands: Subparsers) -> None:
    """Add the command."""
    parser = command(
        commands,
        run,
        "plan",
        "Search for the mesh and the shardings of a program on a machine that have the least "
        "predicted time and fit into memory. `weft.compile(plan=FILE)` takes the plan.",
        "weft plan examples/llama.py:train_step --machine 8xh100 -o plan.json",
    )
    parser.add_argument(
        "program",
        metavar="script.py:function",
        help="a JAX function of a script, with its `function_inputs` (or `inputs`)",
    )
    parser.add_argument(
        "--machine",
        metavar="MACHINE",
        required=True,
        help="with a number of devices: 8xh100, 8x(8xh100), a TOML file",
    )
    parser.add_argument("--devices", type=natural, help="of the machine (default: all of them)")
    parser.add_argument(
        "--tries", type=natural, default=TRIES,
        help=f"candidates that are compiled and simulated (default: {TRIES})",
    )  # fmt: skip
    parser.add_argument(
        "--keep", type=natural, default=KEPT, help=f"plans to show (default: {KEPT})"
    )
    parser.add_argument("-o", "--out", metavar="OUT.json", help="write the best plan to this file")
    parser.add_argument("--export", choices=EXPORTS, help="print the best plan as code")
    parser.add_argument("--json", action="store_true", help="print the plans as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Search, and print the best plans."""
    the_machine = machine(arguments.machine)
    count = arguments.devices or the_machine.devices
    if count is None:
        raise WeftError(
            f"{the_machine.name} has any number of devices",
            help=f"write --machine 8x{the_machine.name}",
        )
    script = load_script(arguments.program)
    captured = capture(script.function, script.inputs())
    with progress_bar() as progress:
        plans = plan_captured(
            captured, the_machine.holding(count), count,
            tries=max(1, arguments.tries), keep=max(1, arguments.keep), progress=progress,
        )  # fmt: skip
    if arguments.out:
        plans[0].save(arguments.out)
    if arguments.json:
        print_json([plan.as_json() for plan in plans])
    elif arguments.export:
        print(plans[0].export(arguments.export), end="")
    else:
        show(plans, arguments.program, the_machine.name)
        if arguments.out:
            print(f"\nwritten  {arguments.out}")
    return 0


def show(plans: list[ShardingPlan], program: str, where: str) -> None:
    """Print a table of plans, and each of them in words."""
    print_text(f"{plural(len(plans), 'plan')} for {program} on {where}, the fastest first")
    print()
    rows = [
        (
            str(n),
            plan.title,
            seconds_text(plan.seconds),
            seconds_text(plan.parts.get("products", 0.0) + plan.parts.get("attention", 0.0)),
            seconds_text(plan.parts.get("other kernels", 0.0)),
            seconds_text(plan.parts.get("collectives exposed", 0.0)),
            bytes_text(plan.memory),
        )
        for n, plan in enumerate(plans, 1)
    ]
    print_table(_COLUMNS, rows)
    for n, plan in enumerate(plans, 1):
        print()
        print_text(f"{n}  {plan.title}")
        for line in plan.about:
            print_text(f"   {line}")


@contextmanager
def progress_bar() -> Iterator[SearchProgress | None]:
    """A progress bar on standard error, if that is a terminal."""
    if not sys.stderr.isatty() or not has_rich():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress as Bar

    with Bar(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("planning", total=None)

        def report(what: str, done: int, total: int) -> None:
            bar.update(task, description=what, completed=done, total=total)

        yield report
