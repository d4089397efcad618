"""`weft zoo`: models from tiny random configurations, compared with eager PyTorch."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from weft.cli.parser import Subparsers, command
from weft.cli.screen import plural, print_check, print_json, print_table, print_text, working
from weft.columns import Column
from weft.zoo import ZOO, ZooModel, select_models
from weft.zoo.check import DTYPES, MESHES, PASSES, ZooResult, check

_STYLES = {"equal": "green", "differs": "bold red", "refused": "yellow"}


def add(commands: Subparsers) -> None:
    """Add the command."""
    parser = command(
        commands,
        run,
        "zoo",
        "Compile models from tiny random configurations, and compare their results and gradients "
        "with eager PyTorch, on one device and on meshes whose plan Weft finds by itself.",
        "weft zoo mlp llama --mesh 8 --dtype f32",
    )
    parser.add_argument("models", nargs="*", metavar="MODEL", help="names or families; else all")
    parser.add_argument("--list", action="store_true", help="list the models, and run none")
    parser.add_argument(
        "--mesh", nargs="+", choices=[*MESHES], default=[*MESHES],
        help="devices: one, 2x2 or 2x4 (default: all three)",
    )  # fmt: skip
    parser.add_argument(
        "--dtype", nargs="+", choices=DTYPES, default=[*DTYPES], help="types (default: both)"
    )
    parser.add_argument(
        "--pass", dest="passes", nargs="+", choices=PASSES, default=[*PASSES],
        help="what is compared (default: both)",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print the outcomes as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Check the models one by one; status 1 if one of them is not equal to eager."""
    models = select_models(ZOO, arguments.models)
    if arguments.list:
        list_models(models, arguments.json)
        return 0
    results: list[ZooResult] = []
    for model in models:
        with working(f"comparing {model.name} with eager"):
            model_results = [
                result
                for dtype in arguments.dtype
                for result in check(model, dtype, arguments.mesh, arguments.passes)
            ]
        results += model_results
        if not arguments.json:
            show_model(model, model_results)
    if arguments.json:
        print_json([asdict(result) for result in results])
    else:
        show_totals(results)
    return 0 if all(result.verdict == "equal" for result in results) else 1


def list_models(models: Sequence[ZooModel], as_json: bool) -> None:
    """Print names, families and the packages that have the code."""
    rows: list[dict[str, Any]] = [
        {"name": m.name, "family": m.family, "library": m.library} for m in models
    ]
    if as_json:
        print_json(rows)
        return
    columns = (Column("model"), Column("family"), Column("code of"))
    print_table(columns, [tuple(row.values()) for row in rows], lambda row, column, nth: "")


def show_model(model: ZooModel, results: Sequence[ZooResult]) -> None:
    """Print one model's outcomes, and the texts of what went wrong."""
    print_text(model.name, "bold")
    columns = (
        Column(), Column(), Column("devices", right=True), Column("ops", right=True),
        Column("collectives", right=True), Column("error", right=True), Column(),
    )  # fmt: skip
    rows = [
        (r.what, r.dtype, r.mesh, f"{r.ops:,}", f"{r.collectives:,}", f"{r.error:.1e}", r.verdict)
        for r in results
    ]

    def style(row: int, column: int, nth: int) -> str:
        return _STYLES[results[row].verdict] if column == len(columns) - 1 else ""

    print_table(columns, rows, style)
    for result in results:
        if result.detail:
            print_check(False, f"{result.what} on {result.mesh}: {result.detail}")


def show_totals(results: Sequence[ZooResult]) -> None:
    """Print the count of what is equal."""
    equal = sum(result.verdict == "equal" for result in results)
    models = len({result.model for result in results})
    count = plural(len(results), "comparison")
    print_check(equal == len(results), f"{plural(models, 'model')}, {count}: {equal:,} equal eager")
