"""`weft compile`: a program after a stage as text, or its executable in a file."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path

import weft
from weft.cli.files import source, write
from weft.cli.parser import Subparsers, command
from weft.cli.passes import add_passes, chosen_level, chosen_machine, chosen_numbers
from weft.cli.program import add_program, read_program
from weft.cli.rules import add_rules, read_rules
from weft.cli.script import is_script, load_script, users_code
from weft.emit.numpy import Numpy
from weft.errors import WeftError
from weft.executable.container import beside, read_constants, write_constants
from weft.executable.executable import Executable
from weft.executable.read import read_tiled
from weft.executable.verify import verify_tiled
from weft.ir.types import Array
from weft.mesh import as_mesh
from weft.pipeline import STAGES, Program, compile_module
from weft.run import LocalProgram
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
        "--to", choices=STAGES, help="print the program after this stage (default: write OUT.weft)"
    )
    parser.add_argument(
        "--from",
        dest="since",
        choices=STAGES,
        help="what the program is already: the text of a stage that was written before",
    )
    parser.add_argument(
        "--target", metavar="NAME", help=f"what it is compiled for: {', '.join(target_names())}"
    )
    add_rules(parser)
    add_passes(parser)
    parser.add_argument(
        "-o", "--out", metavar="OUT", help="write to this file; large constants go beside a text"
    )


def run(arguments: argparse.Namespace) -> int:
    """Compile the program, and print it or write it."""
    if arguments.to is None:
        if arguments.out is None:
            arguments.parser.error("name a stage (--to tiled) to print, or a file (-o step.weft)")
        if arguments.since is not None:
            arguments.parser.error("--from goes with --to: a text has no signature to save")
        save(arguments)
        return 0
    later = arguments.since in STAGES[4:]
    program = written(arguments) if later else compiled(arguments)
    text = program.text(arguments.to, locations=arguments.out is not None)
    if arguments.out is None:
        print(text, end="")
        return 0
    write(Path(arguments.out), text)
    made = program.executable
    if arguments.to in STAGES[4:] and made is not None and (kept := made.text().resources):
        write_constants(arguments.out, kept)
        print(f"{'constants':<11} {beside(arguments.out)}")
    print(f"{'written':<11} {arguments.out}")
    return 0


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
    given = source(arguments.program)
    if isinstance(given, bytes):
        text = given.decode()
        constants: Mapping[str, Array] = {}
    else:
        try:
            text = given.read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise WeftError(
                f"cannot read {given}: {error}", help="give a text that --to tiled wrote"
            ) from None
        constants = read_constants(given) if Path(beside(given)).exists() else {}
    tiled, plan = read_tiled(text, constants)
    verify_tiled(tiled, plan)
    kernels = "launch " in text
    name = arguments.target or ("llvm" if kernels else "numpy")
    made = Executable(tiled, plan, name)
    if arguments.to == "tiled":
        return Program({}, made)
    return Program({}, made, LocalProgram(tiled, plan, Numpy(), target_named(name)))


def save(arguments: argparse.Namespace) -> None:
    """Write the executable of a function or a file."""
    options = {
        "level": chosen_level(arguments),
        "machine": chosen_machine(arguments),
        "target": arguments.target,
        "rules": read_rules(arguments.rules),
        **chosen_numbers(arguments),
    }
    if is_script(arguments.program):
        script = load_script(arguments.program)
        mesh = None if arguments.mesh is None else as_mesh(arguments.mesh)
        inputs, shardings = script.inputs(), script.shardings(mesh)
        with users_code(f"{script.name} was traced"):
            made = weft.compile(
                script.function, *inputs, mesh=mesh, in_shardings=shardings, **options
            )
    else:
        module = weft.parse(source(arguments.program))
        made = weft.compile(module, mesh=arguments.mesh, **options)
    made.save(arguments.out)
    print(made.signature, end="")
    print(f"{'written':<11} {arguments.out}")
