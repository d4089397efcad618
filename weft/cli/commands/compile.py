"""`weft compile`: a program after a stage as text, or its executable in a file."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path

import weft
from weft.cli.files import source, write
from weft.cli.parser import Subparsers, command
from weft.cli.passes import (
    add_approximate,
    add_passes,
    chosen_level,
    chosen_machine,
    chosen_numbers,
)
from weft.cli.program import add_program, read_program
from weft.cli.rules import add_rules, read_rules
from weft.cli.screen import print_json, print_labelled, working
from weft.cli.script import is_script, load_script, users_code
from weft.compiled import Compiled
from weft.emit import emit
from weft.errors import WeftError
from weft.executable.container import constants_path, read_constants
from weft.executable.container_writing import write_constants
from weft.executable.executable import Executable
from weft.executable.read import read_tiled
from weft.executable.verify import verify_tiled
from weft.ir.types import Array
from weft.mesh import as_mesh
from weft.ops.elementwise.approximate import approximable
from weft.pipeline import STAGES, Program, compile_module
from weft.targets import target_named, target_names


def add(commands: Subparsers) -> None:
    """Add the command."""
    parser = command(
        commands,
        run,
        "compile",
        "Compile a program: print it after a stage, or write its executable to a file.",
        "weft compile examples/sharded_mlp.mlir --to tiled",
    )
    add_program(parser)
    parser.add_argument(
        "--to",
        choices=STAGES,
        metavar="STAGE",
        help=f"print the program after this stage: {', '.join(STAGES)} (default: write OUT.weft)",
    )
    parser.add_argument(
        "--from",
        dest="since",
        choices=STAGES,
        metavar="STAGE",
        help="what the program is already: the text of a stage that was written before",
    )
    parser.add_argument(
        "--target", metavar="NAME", help=f"what it is compiled for: {', '.join(target_names())}"
    )
    add_rules(parser)
    add_passes(parser)
    add_approximate(parser)
    parser.add_argument(
        "-o", "--out", metavar="OUT", help="write to this file; large constants go beside a text"
    )
    parser.add_argument(
        "--json", action="store_true", help="print the text, or what was written, as JSON"
    )


def run(arguments: argparse.Namespace) -> int:
    """Compile the program, and print it or write it."""
    if arguments.to is None:
        if arguments.out is None:
            arguments.parser.error("name a stage (--to tiled) to print, or a file (-o step.weft)")
        if arguments.since is not None:
            arguments.parser.error("--from goes with --to: a text has no signature to save")
        with working(f"compiling {arguments.program}"):
            whole = saved(arguments)
        if not arguments.json:
            print(whole.signature, end="")
        print_written(arguments, {"written": arguments.out})
        return 0
    later = arguments.since in STAGES[4:]
    with working(f"compiling {arguments.program}"):
        program = written(arguments) if later else compiled(arguments)
    text = program.text(arguments.to, locations=arguments.out is not None)
    if arguments.out is None:
        if arguments.json:
            print_json({"stage": arguments.to, "text": text})
        else:
            print(text, end="")
        return 0
    write(Path(arguments.out), text)
    made = program.executable
    files: dict[str, str] = {"written": arguments.out}
    if arguments.to in STAGES[4:] and made is not None and (kept := made.text().resources):
        write_constants(arguments.out, kept)
        files = {"constants": str(constants_path(arguments.out))} | files
    print_written(arguments, files)
    return 0


def print_written(arguments: argparse.Namespace, files: Mapping[str, str]) -> None:
    """Print the names of the written files."""
    if arguments.json:
        print_json(files)
    else:
        print_labelled(files.items())


def compiled(arguments: argparse.Namespace) -> Program:
    """The program up to a stage."""
    since, to = arguments.since, arguments.to
    if since is not None and STAGES.index(to) < STAGES.index(since):
        arguments.parser.error(f"{to} comes before {since}")
    return compile_module(
        read_program(arguments.program, arguments.mesh),
        level=chosen_level(arguments),
        machine=chosen_machine(arguments),
        target=arguments.target,
        approximate=approximable(arguments.approximate),
        pads="named",
        rules=read_rules(arguments.rules),
        numbers=chosen_numbers(arguments),
        since=since,
        to=to,
    )


def written(arguments: argparse.Namespace) -> Program:
    """An executable from the text of one of the last two stages."""
    if arguments.to not in STAGES[4:]:
        arguments.parser.error(f"{arguments.to} comes before {arguments.since}")
    program = source(arguments.program)
    if isinstance(program, bytes):
        text = program.decode()
        constants: Mapping[str, Array] = {}
    else:
        try:
            text = program.read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise WeftError(
                f"cannot read {program}: {error}", help="give a text that --to tiled wrote"
            ) from None
        constants = read_constants(program) if Path(constants_path(program)).exists() else {}
    tiled, plan = read_tiled(text, constants)
    verify_tiled(tiled, plan)
    kernels = "launch " in text
    name = arguments.target or ("llvm" if kernels else "numpy")
    made = Executable(tiled, plan, name)
    return Program({}, made if arguments.to == "tiled" else emit(made, target_named(name)))


def saved(arguments: argparse.Namespace) -> Compiled:
    """A function or a file, compiled and written as an executable."""
    options = {
        "level": chosen_level(arguments),
        "machine": chosen_machine(arguments),
        "target": arguments.target,
        "approximate": arguments.approximate,
        "rules": read_rules(arguments.rules),
        **chosen_numbers(arguments),
    }
    if is_script(arguments.program):
        script = load_script(arguments.program)
        mesh = None if arguments.mesh is None else as_mesh(arguments.mesh)
        inputs, shardings = script.inputs(), script.shardings(mesh)
        with users_code(f"{script.name} was traced"):
            program = weft.compile(
                script.function, *inputs, mesh=mesh, in_shardings=shardings, **options
            )
    else:
        program = weft.compile(
            weft.parse(source(arguments.program)), mesh=arguments.mesh, **options
        )
    program.save(arguments.out)
    return program
