"""`weft eval`: run a program in numpy and show its results."""

from __future__ import annotations

import argparse
import contextlib
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from weft.cli.arrays import load, plain, save, show
from weft.cli.parser import Subparsers, command
from weft.cli.program import add_program, read_program
from weft.cli.screen import plural, print_check, print_json, print_text, working
from weft.cli.script import is_script, load_script
from weft.evaluate import evaluate
from weft.ir.module import Function, Module, walk
from weft.ir.types import Array


def add(commands: Subparsers) -> None:
    """Add the command."""
    parser = command(
        commands,
        run,
        "eval",
        "Evaluate a program exactly, in numpy, on one device or many.",
        "weft eval examples/all_reduce.mlir --devices 4",
    )
    add_program(parser, mesh=False)
    parser.add_argument(
        "arguments",
        nargs="?",
        metavar="ARGS.npz",
        help="the arguments, named arg0, arg1, ... or in order",
    )
    parser.add_argument(
        "--func", metavar="NAME", default="main", help="what to run (default: main)"
    )
    parser.add_argument(
        "--devices",
        metavar="N|RxP",
        type=_devices,
        help="run on N partitions, or on R replicas of P partitions; every argument and result "
        "then has a leading dim, one entry a device",
    )
    parser.add_argument("-o", "--out", metavar="OUT.npz", help="write the results to this file")
    parser.add_argument("--json", action="store_true", help="print the results as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Evaluate, and show or write the results."""
    module, arrays = program_and_arrays(arguments)
    function = module.function(arguments.func)
    # A program's own output (interpreter.print) must not mix with the JSON.
    quiet = contextlib.redirect_stdout(sys.stderr) if arguments.json else contextlib.nullcontext()
    with quiet, working(f"evaluating {arguments.program}"):
        results = evaluate(module, *arrays, func=function.name, devices=arguments.devices)
    if arguments.out:
        save(Path(arguments.out), results)
    checks = count_checks(module, function)
    if arguments.json:
        print_json(_report(function, results, arguments.devices, checks))
    else:
        _show(function, results, arguments.devices is not None, checks)
    return 0


def program_and_arrays(arguments: argparse.Namespace) -> tuple[Module, list[Array]]:
    """The program, and the arguments of the function that is run."""
    if is_script(arguments.program):
        if arguments.devices is not None or arguments.func != "main":
            arguments.parser.error("a function of a script goes without --devices and --func")
        script = load_script(arguments.program)
        script.refuse_file(arguments.arguments)
        return script.module_and_arrays()
    module = read_program(arguments.program)
    function = module.function(arguments.func)
    return module, load(arguments.arguments, function, arguments.devices is not None)


def _devices(text: str) -> int | tuple[int, int]:
    match = re.fullmatch(r"(\d+)(?:x(\d+))?", text)
    if match is None or "0" in match.groups():
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of devices, such as 4 or 2x4")
    return int(match[1]) if match[2] is None else (int(match[1]), int(match[2]))


def count_checks(module: Module, function: Function) -> int:
    """The number of check.* ops in a function and its callees."""
    count = 0
    reached = [function.name]
    for name in reached:
        for node in walk(module.function(name).body):
            target = getattr(node.op, "call_target_name", node.op.name)
            count += target.startswith("check.")
            callee = getattr(node.op, "callee", None) or getattr(node.op, "decomposition", None)
            if isinstance(callee, str) and callee in module.functions and callee not in reached:
                reached.append(callee)
    return count


def _report(function: Function, results: Sequence[Array], devices: object, checks: int) -> object:
    shown = [
        {"type": str(type), "value": plain(array)}
        for type, array in zip(function.result_types, results, strict=True)
    ]
    return {
        "function": function.name,
        "devices": devices,
        "results": shown,
        "checks_passed": checks,
    }


def _show(function: Function, results: Sequence[Array], stacked: bool, checks: int) -> None:
    show(function.result_types, results, stacked)
    if checks:
        where = " on every device" if stacked else ""
        print_check(True, f"{plural(checks, 'check')} passed{where}")
    elif not results:
        print_text("done; the program gives no results", "dim")
