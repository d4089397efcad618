"""`weft check`: read programs and verify them."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path

from weft.capture import parse
from weft.cli.parser import Commands, command
from weft.cli.screen import error_json, plural, print_error, print_json
from weft.errors import WeftError
from weft.ir.verify import verify


def add(commands: Commands) -> None:
    """Add the command."""
    parser = command(
        commands,
        run,
        "check",
        "Read StableHLO programs and verify every op; errors point into the file.",
        "weft check examples/*.mlir",
    )
    parser.add_argument("files", nargs="+", metavar="FILE", help="StableHLO text or bytecode")
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Check every file; status 1 if one of them is wrong."""
    findings = []
    for file in arguments.files:
        finding, error = check(file)
        findings.append(finding)
        if arguments.json:
            continue
        if error is not None:
            print_error(error)
        else:
            functions, nodes = finding["functions"], finding["nodes"]
            assert isinstance(functions, int) and isinstance(nodes, int)
            print(f"ok  {file}  {plural(functions, 'function')}, {plural(nodes, 'node')}")
    if arguments.json:
        print_json(findings)
    return 0 if all(finding["ok"] for finding in findings) else 1


def check(file: str) -> tuple[Mapping[str, object], WeftError | None]:
    """What is in a file, or what is wrong with it."""
    try:
        module = verify(parse(Path(file)))
    except WeftError as error:
        return {"file": file, "ok": False, "error": error_json(error)}, error
    nodes = sum(1 for _ in module.nodes())
    return {"file": file, "ok": True, "functions": len(module.functions), "nodes": nodes}, None
