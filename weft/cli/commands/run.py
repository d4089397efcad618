"""`weft run`: compile a program for a mesh and run it on virtual devices."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import weft
from weft.capture.normalize.tokens import keep_tokens_inside
from weft.cli.arrays import (
    load,
    plain,
    random_arguments,
    save,
    show,
    with_random_values,
)
from weft.cli.files import source
from weft.cli.parser import Subparsers, command, natural
from weft.cli.passes import (
    add_approximate,
    add_passes,
    chosen_level,
    chosen_machine,
    chosen_numbers,
)
from weft.cli.program import add_program
from weft.cli.rules import add_rules, read_rules
from weft.cli.screen import (
    plural,
    print_check,
    print_json,
    print_table,
    print_text,
    width,
    working,
)
from weft.cli.script import Script, is_script, load_script, users_code
from weft.columns import Column
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
from weft.records import dataclass

_SMALL, _FEW = 64, 4  # the most elements of a result, and results, that are shown in full


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
    add_approximate(parser)
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
    parser.add_argument("--json", action="store_true", help="print results and findings as JSON")


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome of a comparison: a line after a ✓ or a ✗, and remarks below it."""

    ok: bool
    text: str
    remarks: tuple[str, ...] = ()


def run(arguments: argparse.Namespace) -> int:
    """Compile, run, show the results, and with --check compare them."""
    if not arguments.check and (arguments.rtol is not None or arguments.atol is not None):
        arguments.parser.error("--rtol and --atol are tolerances of --check")
    script = load_script(arguments.program) if is_script(arguments.program) else None
    with working(f"compiling {arguments.program}"):
        made = compiled_script(script, arguments) if script else compiled_file(arguments)
    compiled, values = made
    began = time.perf_counter()
    # A call returns before its results are computed, so the clock stops after a wait for their
    # elements. The program may call back into the script.
    with working(f"running {arguments.program}"), users_code("the program ran"):
        arrays = [None if r is None else np.asarray(r) for r in compiled.flat(values)]
    seconds = time.perf_counter() - began
    if arguments.out:
        save(Path(arguments.out), arrays)
    if not arguments.json:
        show_run(compiled, arrays, seconds)
    verdicts = [*checked(compiled, values, arrays, arguments)]
    if arguments.json:
        print_json(run_json(compiled, arrays, seconds, verdicts))
    for verdict in () if arguments.json else verdicts:
        print_check(verdict.ok, verdict.text)
        for remark in verdict.remarks:
            print_text(remark, "dim")
    return 0 if all(verdict.ok for verdict in verdicts) else 1


def show_run(compiled: Compiled, arrays: Sequence[Array | None], seconds: float) -> None:
    """Print the results, time, memory, and the table of collectives."""
    show_results(result_types(compiled), arrays)
    devices, peak = plural(device_count(compiled), "device"), bytes_text(compiled.memory().peak)
    print_text(f"ran on {devices} in {1e3 * seconds:.3g} ms, {peak} on each", "dim")
    if rows := compiled.collectives():
        print_text("collectives, in bytes that one device sends", "bold")
        print(sent_text(rows, width()))


def device_count(compiled: Compiled) -> int:
    """The number of devices of a program."""
    mesh = next(iter(compiled.program.module.meshes.values()), None)
    return 1 if mesh is None else mesh.size


def run_json(
    compiled: Compiled,
    arrays: Sequence[Array | None],
    seconds: float,
    verdicts: Sequence[Verdict],
) -> dict[str, Any]:
    """A run as data; elements of small results only, `-o` writes all of them."""
    results = [
        {
            "type": str(type),
            "value": plain(array) if array is None or array.size <= _SMALL else None,
        }
        for type, array in zip(result_types(compiled), arrays, strict=True)
    ]
    collectives = [
        {
            "collective": row.name,
            "over": row.over,
            "count": row.count,
            "bytes": row.bytes,
            "line": row.loc.line,
        }
        for row in compiled.collectives()
    ]
    return {
        "devices": device_count(compiled),
        "seconds": seconds,
        "memory": compiled.memory().peak,
        "results": results,
        "collectives": collectives,
        "checks": [{"ok": v.ok, "text": v.text, "remarks": [*v.remarks]} for v in verdicts],
    }


def show_results(types: Sequence[Type], arrays: Sequence[Array | None]) -> None:
    """Print small results in full, and a summary of large ones."""
    small = all(array is None or array.size <= _SMALL for array in arrays)
    if small and len(arrays) <= _FEW:
        show(types, arrays)
        return
    rows = [
        (f"result {n}", str(type), "a token" if array is None else described(array))
        for n, (type, array) in enumerate(zip(types, arrays, strict=True))
    ]
    columns = (Column(), Column(fit="wrap"), Column(fit="wrap"))
    print_table(columns, rows, lambda row, column, nth: ("dim", "cyan", "")[column])


def described(array: Array) -> str:
    """A number, or the range and mean of an array."""
    if array.size == 0:
        return "no elements"
    if array.size == 1:
        return str(array.reshape(-1)[0])
    numbers = array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)
    if array.dtype.kind == "c":
        return f"mean {numbers.mean():.4g}"
    return f"{numbers.min():.4g} to {numbers.max():.4g}, mean {numbers.mean():.4g}"


def options(arguments: argparse.Namespace) -> dict[str, Any]:
    """The options of weft.compile from the command line."""
    return {
        "level": chosen_level(arguments),
        "machine": chosen_machine(arguments),
        "sync_every_op": arguments.sync_every_op,
        "tune": arguments.tune,
        "approximate": arguments.approximate,
        "rules": read_rules(arguments.rules),
        **chosen_numbers(arguments),
    }


def tolerance(text: str) -> float:
    """A nonnegative number, as the type of an argument."""
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a tolerance, such as 1e-5")
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
        compiled = weft.compile(
            function,
            *inputs,
            mesh=mesh,
            in_shardings=script.shardings(mesh),
            **options(arguments),
        )
        return compiled, compiled.leaves(*with_random_values(inputs, arguments.seed))


def result_types(compiled: Compiled) -> tuple[Any, ...]:
    """The global types of the results."""
    return compiled.program.stage("captured").function("main").result_types


def checked(
    compiled: Compiled,
    values: list[Any],
    arrays: list[Array | None],
    arguments: argparse.Namespace,
) -> Iterator[Verdict]:
    """The verdicts of the comparisons of --check, in order."""
    if arguments.check:
        with working("evaluating on one device"):
            expected = evaluate(compiled.program.stage("captured"), *map(np.asarray, values))
        for difference in errors(arrays, expected, arguments.rtol, arguments.atol):
            yield Verdict(difference.is_close, str(difference))
    if arguments.check_every_op:
        inputs = [*map(np.asarray, values)]
        with working("comparing every kernel with its nodes"):
            verdict = check_kernels(compiled, inputs)
        yield verdict
        with working("comparing every value with the one of one device"):
            verdict = check_values(compiled, inputs)
        yield verdict


def check_kernels(compiled: Compiled, arrays: list[Array]) -> Verdict:
    """The first kernel that differs from its nodes, and the first node that differs."""
    local = compiled.program.local
    if local.calls is None:
        return Verdict(True, "no kernels to compare: every node runs in numpy")
    outcome = compare_kernels(local, arrays)
    if isinstance(outcome, KernelDifference):
        return Verdict(False, outcome.located())
    ran, results = plural(outcome.launches, "kernel run"), plural(outcome.values, "result")
    remarks = []
    if outcome.excess:
        excess = f"{plural(outcome.excess, 'result')} of them only without excess precision"
        remarks.append(f"{excess}, which bf16 and fused products and sums have")
    if outcome.skipped:
        named = ", ".join(outcome.skipped)
        remarks.append(f"not compared, or not in full, as they share nodes: {named}")
    message = f"{ran}: {results} compared with those of their nodes in numpy, none differs"
    return Verdict(True, message, tuple(remarks))


def check_values(compiled: Compiled, arrays: list[Array]) -> Verdict:
    """The first value of the sharded program that differs from that of one device."""
    sharded, folder = compiled.program.stage("sharded"), cache_folder()
    found = compare_every_op(sharded, arrays, None if folder is None else folder / "reference")
    if isinstance(found, Difference):
        return Verdict(False, f"the first value that differs: {found.located()}")
    message = f"{plural(found, 'value')} compared with those of one device, none differs"
    return Verdict(True, f"node by node, without kernels: {message}")
