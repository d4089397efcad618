"""`weft predict`: the time, memory and utilization of a program's step on a machine."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, cast

from weft.cli.in_processes import in_processes
from weft.cli.parser import Subparsers, command, natural
from weft.cli.program import add_program, captured_program
from weft.cli.screen import plural, print_json, print_spans, print_table, print_text, working
from weft.columns import Column
from weft.errors import WeftError
from weft.ir.module import Module
from weft.machine import HOST, Machine, bytes_text, machine, seconds_text
from weft.mesh import Mesh, as_mesh
from weft.optimize import LEVELS, Level
from weft.predict import Predictor
from weft.simulate import Noise

_MOST = 64  # meshes of a sweep


def add(commands: Subparsers) -> None:
    """Add the command."""
    parser = command(
        commands,
        run,
        "predict",
        "Predict one step of a program on a machine: its time and what takes it, the memory of a "
        "device, utilization. The program is optimized for the machine; nothing runs.",
        "weft predict examples/llama.py:loss --mesh data=2,model=4 --machine 8xh100",
    )
    add_program(parser)
    parser.add_argument(
        "--machine",
        metavar="MACHINE",
        action="append",
        help="a name of `weft machines`, 8xh100, 32x(8xh200)@400G or a TOML file; may be repeated "
        f"(default: {HOST.name})",
    )
    parser.add_argument(
        "--sweep",
        action="store_true",
        help="predict every mesh of as many devices with the same axes, the fastest first",
    )
    levels = [*map(str, LEVELS)]
    parser.add_argument("--level", choices=levels, default="2", help="of optimization (default: 2)")
    parser.add_argument(
        "--jitter", type=share, default=0.0, metavar="0.05",
        help="standard deviation of a device's computing time, as a share of it",
    )  # fmt: skip
    parser.add_argument(
        "--straggler", type=float, default=1.0, metavar="1.2",
        help="the computing time of the slowest device, relative to the others",
    )  # fmt: skip
    parser.add_argument("--seed", type=natural, default=0, help="of the jitter (default: 0)")
    parser.add_argument(
        "--whole", action="store_true", help="simulate every layer instead of equal ones once"
    )
    parser.add_argument(
        "--timeline", metavar="OUT.json", help="write the timeline for Perfetto or chrome://tracing"
    )
    parser.add_argument("--json", action="store_true", help="print the predictions as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Predict the program on each machine, and on each mesh of a sweep."""
    machines = [machine(name) for name in arguments.machine or (HOST.name,)]
    with working(f"reading {arguments.program}"):
        module = captured_program(arguments.program, arguments.mesh)
    predictor = predictor_of(module, arguments)
    if arguments.sweep:
        return sweep(predictor, machines, arguments)
    predictions = []
    for chosen in machines:
        with working(f"predicting {arguments.program} on {chosen.name}"):
            predictions.append(predictor.on(chosen))
    if arguments.timeline:
        predictions[0].timeline.save(arguments.timeline)
    if arguments.json:
        print_json([one.as_json() for one in predictions])
        return 0
    for one in predictions:
        headline, *rest = str(one).split("\n")
        print_text(headline, "bold")
        print_spans([[(line, "")] for line in rest])
        if one.drawn is not None:
            print_text(f"  {one.drawn[0]} of {one.drawn[1]} equal layers were simulated", "dim")
    if arguments.timeline:
        print_text(f"the timeline is in {arguments.timeline}; ui.perfetto.dev opens it")
    return 0


def predictor_of(module: Module, arguments: argparse.Namespace) -> Predictor:
    """The program with the options of the command line."""
    noise = Noise(arguments.jitter, arguments.straggler, arguments.seed)
    options = {"level": cast(Level, int(arguments.level))}
    return Predictor(module, noise=noise, whole=arguments.whole, options=options)


def sweep(predictor: Predictor, machines: Sequence[Machine], arguments: argparse.Namespace) -> int:
    """Print a table of all meshes on all machines, the fastest first."""
    mesh = next((m for m in predictor.module.meshes.values() if m.axes), None)
    if mesh is None:
        raise WeftError(
            f"{arguments.program} has no mesh to vary", help="give --mesh data=2,model=4"
        )
    jobs = [
        partial(tried, predictor, other, chosen)
        for chosen in machines
        for other in meshes_like(mesh)
    ]
    with working(f"predicting {arguments.program}"):
        _ = predictor.shortened  # once, before processes share the work
        rows = in_processes(jobs)
    rows.sort(key=lambda row: row.get("seconds", float("inf")))
    if arguments.json:
        print_json(rows)
        return 0
    heads = ("mesh", "machine", "step", "MFU", "exposed", "memory", "tokens/s")
    columns = [Column(heads[0]), Column(heads[1]), *[Column(h, right=True) for h in heads[2:]]]
    print_table([*columns, Column("", fit="wrap", least=16)], [*map(_cells, rows)])
    print_text(f"{plural(len(rows), 'prediction')}", "dim")
    return 0


def tried(predictor: Predictor, mesh: Mesh, the_machine: Machine) -> dict[str, Any]:
    """The prediction on one mesh as data, or the error."""
    try:
        return predictor.on(the_machine, mesh).as_json()
    except WeftError as error:
        return {"mesh": dict(mesh.axes), "machine": the_machine.name, "error": error.message}


def meshes_like(mesh: Mesh) -> Iterator[Mesh]:
    """Every mesh with the same axes and as many devices."""
    names = [name for name, _ in mesh.axes]
    for count, sizes in enumerate(_factored(mesh.size, len(names))):
        if count == _MOST:
            return
        yield as_mesh(dict(zip(names, sizes, strict=True)))


def _factored(number: int, parts: int) -> Iterator[tuple[int, ...]]:
    """Every way to write a number as an ordered product."""
    if parts == 1:
        yield (number,)
        return
    for first in range(1, number + 1):
        if number % first == 0:
            for rest in _factored(number // first, parts - 1):
                yield (first, *rest)


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    axes = ",".join(f"{axis}={size}" for axis, size in row["mesh"].items())
    if "error" in row:
        return (axes, row["machine"], "", "", "", "", "", row["error"])
    seconds, rate = row["seconds"], row["tokens_per_second"]
    exposed = row["parts"]["collectives exposed"] / seconds if seconds else 0.0
    return (
        axes, row["machine"], seconds_text(seconds), f"{row['mfu']:.1%}", f"{exposed:.1%}",
        bytes_text(row["memory"]["peak"]), "" if rate is None else f"{rate:,.0f}",
        "" if row["fits"] else "does not fit",
    )  # fmt: skip


def share(text: str) -> float:
    """A share from 0 on, as the type of an argument."""
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if number < 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a share")
    return number
