"""`weft run`: compile a program for a mesh and run it on virtual devices."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import weft
from weft.capture.normalize.tokens import keep_tokens_inside
from weft.cli.arrays import load, random_arguments, save, show
from weft.cli.files import source
from weft.cli.parser import Subparsers, command, natural
from weft.cli.passes import add_passes, chosen_level, chosen_machine, chosen_numbers
from weft.cli.program import add_program
from weft.cli.rules import add_rules, read_rules
from weft.cli.screen import console, plural, print_text
from weft.cli.script import Script, is_script, load_script, users_code
from weft.compare import (
    Difference,
    KernelDifference,
    compare_every_op,
    compare_kernels,
    errors,
)
from weft.compiled import Compiled
from weft.cost.sent_table import sent_text
from weft.evaluate import evaluate
from weft.ir.types import Array, Type
from weft.knobs import TUNES, cache_folder
from weft.machine import bytes_text
from weft.mesh import as_mesh

if TYPE_CHECKING:
    from rich.console import Console

_SMALL, _FEW = 64, 4  # elements of a result, and results, that are shown in full


def add(commands: Subparsers) -> None:
    """Add the command."""
    parser = command(
        commands,
        run,
        "run",
        "Compile a StableHLO file or a JAX function for a mesh and run it on virtual devices. The "
        "table of collectives counts bytes that one device sends to others: each time, and in all "
        "the times of a run.",
        "weft run examples/llama.py:loss --mesh data=2,model=4 --check",
    )
    add_program(parser)
    add_rules(parser)
    parser.add_argument(
        "arguments",
        nargs="?",
        metavar="ARGS.npz",
        help="the arguments of a file's @main, named arg0, arg1, ...; without it, random ones",
    )
    add_passes(parser)
    parser.add_argument("--seed", type=natural, default=0, help="of random arguments (default: 0)")
    parser.add_argument(
        "--check", action="store_true", help="compare the results with those of one device"
    )
    for name, what in (("rtol", "of the number it should be"), ("atol", "whatever that is")):
        parser.add_argument(
            f"--{name}",
            metavar="1e-5",
            type=tolerance,
            help=f"with --check: how far every number may be off, {what}; by default what "
            "rounding explains, of the largest",
        )
    parser.add_argument(
        "--check-every-op",
        action="store_true",
        help="compare every kernel with its nodes, and every value with the one of one device; "
        "name the first that differs",
    )
    parser.add_argument(
        "--sync-every-op",
        action="store_true",
        help="wait after every op, so that a failure is pinned to the op that caused it",
    )
    parser.add_argument(
        "--tune", choices=TUNES, help="whether large products are measured (default: WEFT_TUNE)"
    )
    parser.add_argument("-o", "--out", metavar="OUT.npz", help="write the results to this file")


def run(arguments: argparse.Namespace) -> int:
    """Compile, run, show what came out, and compare it if asked to."""
    if not arguments.check and (arguments.rtol is not None or arguments.atol is not None):
        arguments.parser.error("--rtol and --atol are tolerances of --check")
    screen = console()
    script = load_script(arguments.program) if is_script(arguments.program) else None
    compiled, values = compiled_script(script, arguments) if script else compiled_file(arguments)
    began = time.perf_counter()
    # Results are there at once; only their elements have been waited for.
    with users_code("the program ran"):  # it may call functions of the script
        arrays = [None if r is None else np.asarray(r) for r in compiled.flat(values)]
    seconds = time.perf_counter() - began
    if arguments.out:
        save(Path(arguments.out), arrays)
    show_results(screen, result_types(compiled), arrays)
    mesh = next(iter(compiled.program.module.meshes.values()), None)
    devices = plural(1 if mesh is None else mesh.size, "device")
    peak = bytes_text(compiled.memory().peak)
    screen.print(f"[dim]ran on {devices} in {1e3 * seconds:.3g} ms, {peak} on each[/]")
    rows = compiled.collectives()
    if rows:
        screen.print("[bold]collectives[/][dim], in bytes that one device sends[/]")
        print_text(screen, sent_text(rows, screen.width))
    status = 0
    if arguments.check:
        status = check(compiled, values, arrays, arguments.rtol, arguments.atol)
    if arguments.check_every_op:
        status = max(status, check_every_op(compiled, values))
    return status


def show_results(screen: Console, types: Sequence[Type], arrays: Sequence[Array | None]) -> None:
    """Small results in full, of large ones what their numbers are like."""
    small = all(array is None or array.size <= _SMALL for array in arrays)
    if small and len(arrays) <= _FEW:
        show(screen, types, arrays)
        return
    for n, (type, array) in enumerate(zip(types, arrays, strict=True)):
        told = "a token" if array is None else described(array)
        screen.print(f"[dim]result[/] [bold]{n}[/]  [cyan]{type}[/]  {told}")


def described(array: Array) -> str:
    """One number, or the range of many and their mean."""
    if array.size == 0:
        return "no elements"
    if array.size == 1:
        return str(array.reshape(-1)[0])
    numbers = array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)
    if array.dtype.kind == "c":
        return f"mean {numbers.mean():.4g}"
    return f"{numbers.min():.4g} to {numbers.max():.4g}, mean {numbers.mean():.4g}"


def options(arguments: argparse.Namespace) -> dict[str, Any]:
    """What weft.compile is told."""
    return {
        "level": chosen_level(arguments),
        "machine": chosen_machine(arguments),
        "sync_every_op": arguments.sync_every_op,
        "tune": arguments.tune,
        "rules": read_rules(arguments.rules),
        **chosen_numbers(arguments),
    }


def tolerance(text: str) -> float:
    """A number from 0 on, as the type of an argument."""
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is no tolerance, such as 1e-5")
    return number


def compiled_file(arguments: argparse.Namespace) -> tuple[Compiled, list[Any]]:
    """A StableHLO file, compiled, and the arguments of its @main."""
    module = keep_tokens_inside(weft.parse(source(arguments.program)))
    main = module.function("main")
    if arguments.arguments is None:
        values: Sequence[Array | None] = random_arguments(main.arg_types, arguments.seed)
    else:
        values = load(arguments.arguments, main, False)
    made = weft.compile(module, mesh=arguments.mesh, **options(arguments))
    return made, [v for v in values if v is not None]


def compiled_script(script: Script, arguments: argparse.Namespace) -> tuple[Compiled, list[Any]]:
    """A JAX function of a script, compiled, and the leaves of its arguments."""
    script.refuse_file(arguments.arguments)
    mesh = None if arguments.mesh is None else as_mesh(arguments.mesh)
    function, inputs = script.function, script.inputs()
    with users_code(f"{script.name} was traced"):
        made = weft.compile(
            function,
            *inputs,
            mesh=mesh,
            in_shardings=script.shardings(mesh),
            **options(arguments),
        )
        return made, made.leaves(*inputs)


def result_types(compiled: Compiled) -> tuple[Any, ...]:
    """The global types of the results."""
    return compiled.program.stage("captured").function("main").result_types


def check(
    compiled: Compiled,
    values: list[Any],
    arrays: list[Array | None],
    rtol: float | None = None,
    atol: float | None = None,
) -> int:
    """Compare with the reference on one device; 1 if they differ."""
    screen = console()
    captured = compiled.program.stage("captured")
    expected = evaluate(captured, *map(np.asarray, values))
    worst = errors(arrays, expected, rtol, atol)
    for difference in worst:
        mark = "[green]✓[/]" if difference.is_close else "[red]✗[/]"
        screen.print(f"{mark} {difference}", highlight=False)
    return 0 if all(d.is_close for d in worst) else 1


def check_every_op(compiled: Compiled, values: list[Any]) -> int:
    """Name the first kernel and the first value that differ; 1 if there is one."""
    arrays = [*map(np.asarray, values)]
    return max(check_kernels(compiled, arrays), check_values(compiled, arrays))


def check_kernels(compiled: Compiled, arrays: list[Array]) -> int:
    """Name the first kernel that differs from its nodes, and the first step in it."""
    screen, local = console(), compiled.program.local
    if local.target is None:
        screen.print("[dim]no kernels to compare: every node runs in numpy[/]")
        return 0
    found = compare_kernels(local, arrays)
    if isinstance(found, KernelDifference):
        tell_difference(screen, found.told())
        return 1
    ran, results = plural(found.launches, "kernel run"), plural(found.values, "result")
    told = f"{ran}: {results} compared with those of their nodes in numpy, none differs"
    screen.print(f"[green]✓[/] {told}", highlight=False)
    if found.excess:
        told = f"{plural(found.excess, 'result')} of them only without excess precision"
        screen.print(f"[dim]{told}, which bf16 and fused products and sums have[/]")
    if found.skipped:
        named = ", ".join(found.skipped)
        screen.print(f"[yellow]not compared, or not in full, as they share nodes: {named}[/]")
    return 0


def check_values(compiled: Compiled, arrays: list[Array]) -> int:
    """Name the first value of the sharded program that differs from the one on one device."""
    screen, sharded = console(), compiled.program.stage("sharded")
    folder = cache_folder()
    found = compare_every_op(sharded, arrays, None if folder is None else folder / "reference")
    if isinstance(found, Difference):
        tell_difference(screen, f"the first value that differs: {found.told()}")
        return 1
    told = f"{plural(found, 'value')} compared with those of one device, none differs"
    screen.print(f"[green]✓[/] node by node, without kernels: {told}", highlight=False)
    return 0


def tell_difference(screen: Console, told: str) -> None:
    """What differs, and where; brackets in it are types, not colours."""
    screen.print("[red]✗[/]", end=" ")
    screen.print(told, markup=False, highlight=False, soft_wrap=True)
