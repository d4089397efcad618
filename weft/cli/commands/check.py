"""`weft check`: read programs and verify them."""

from __future__ import annotations

import argparse
from collections.abc import Mapping

from weft.cli.parser import Subparsers, command
from weft.cli.program import add_program, read_program
from weft.cli.screen import error_json, plural, print_error, print_json, working
from weft.errors import WeftError
from weft.ir.verify import verify


def add(commands: Subparsers) -> None:
    """Add the command."""
    parser = command(
        commands,
        run,
        "check",
        "Read programs and verify every op; errors point into the file.",
        "weft check examples/*.mlir",
    )
    add_program(parser, nargs="+")
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Check every program; status 1 if one of them is wrong."""
    findings = []
    for program in arguments.programs:
        with working(f"reading {_shown(program)}"):
            finding, error = check(program, arguments.mesh)
        findings.append(finding)
        if arguments.json:
            continue
        if error is not None:
            print_error(error)
        else:
            functions, nodes = finding["functions"], finding["nodes"]
            assert isinstance(functions, int) and isinstance(nodes, int)
            print(
                f"ok  {_shown(program)}  {plural(functions, 'function')}, {plural(nodes, 'node')}"
            )
    if arguments.json:
        print_json(findings)
    return 0 if all(finding["ok"] for finding in findings) else 1


def _shown(program: str) -> str:
    return "standard input" if program == "-" else program


def check(program: str, mesh: str | None) -> tuple[Mapping[str, object], WeftError | None]:
    """The counts of a program, or its errors."""
    try:
        module = verify(read_program(program, mesh))
    except WeftError as error:
        return {"file": program, "ok": False, "error": error_json(error)}, error
    nodes = sum(1 for _ in module.nodes())
    return {"file": program, "ok": True, "functions": len(module.functions), "nodes": nodes}, None
