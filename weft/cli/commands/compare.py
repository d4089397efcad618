"""`weft compare`: every module's output of a PyTorch model, sharded against eager."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from weft.cli.parser import Subparsers, command
from weft.cli.passes import add_level, chosen_level
from weft.cli.screen import plural, print_check, print_json, print_table, print_text, working
from weft.cli.script import is_script, load_script, users_code
from weft.columns import Column
from weft.compare import (
    ModuleComparison,
    ModuleDifference,
    RequiredCorrelation,
    compare_modules,
    read_required,
)
from weft.compare.required import CORRELATION
from weft.errors import WeftError
from weft.knobs import cache_folder
from weft.mesh import as_mesh
from weft.zoo import ZOO, select_models

_ZOO = "zoo:"


def add(commands: Subparsers) -> None:
    """Add the command."""
    parser = command(
        commands,
        run,
        "compare",
        "Compare the output of every module of a PyTorch model, compiled for a mesh, with eager. "
        "Eager's values are kept on disk for the next comparison.",
        "weft compare zoo:llama --mesh data=2,model=4 --require 0.9999",
    )
    parser.add_argument(
        "model",
        metavar="script.py:model|zoo:NAME",
        help="a module of a script, called with `model_inputs` (or `inputs`): a tuple of "
        "arguments, a dict of keywords, or a function that returns them; or a model of the zoo",
    )
    parser.add_argument("--mesh", metavar="AXIS=SIZE,...", help="the sizes of the mesh's axes")
    parser.add_argument("--plan", default=None, help="a ready plan (default: auto)")
    parser.add_argument("--target", choices=("llvm", "numpy"), help="what runs it (default: llvm)")
    add_level(parser)
    parser.add_argument(
        "--require", type=float, metavar="0.999", help="the least correlation of every module"
    )
    parser.add_argument(
        "--requirements",
        type=Path,
        metavar="FILE.json",
        help="the required correlations and exemptions, by model and target",
    )
    parser.add_argument("--json", action="store_true", help="print the comparison as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Compare, show the table, and name the first module that is wrong."""
    model, args, kwargs = read_model(arguments.model)
    required = required_of(arguments, type(model).__name__)
    folder = cache_folder()
    with working(f"comparing the modules of {arguments.model}"), users_code("the model ran"):
        comparison = compare_modules(
            model, args, kwargs, required=required,
            cache=None if folder is None else folder / "reference",
            mesh=None if arguments.mesh is None else as_mesh(arguments.mesh),
            plan=arguments.plan, target=arguments.target, level=chosen_level(arguments),
        )  # fmt: skip
    if arguments.json:
        print_json(comparison_json(comparison))
    else:
        show(comparison)
    return 0 if comparison.is_close else 1


def read_model(text: str) -> tuple[Any, Sequence[Any], Mapping[str, Any]]:
    """A model with the arguments of a call."""
    if text.startswith(_ZOO):
        module, inputs = select_models(ZOO, [text.removeprefix(_ZOO)])[0].make()
        return module, (), inputs
    if not is_script(text):
        raise WeftError(
            f"{text!r} names no model", help="write script.py:model, or zoo:llama for the zoo's"
        )
    script = load_script(text)
    model, arguments = script.names.get(script.name), script.beside("inputs")
    if model is None or arguments is None:
        what = script.name if model is None else f"{script.name}_inputs"
        raise WeftError(f"{script.path} defines no {what}", help=f"define {what} there")
    with users_code(f"{script.name}_inputs was called"):
        arguments = arguments() if callable(arguments) else arguments
    if isinstance(arguments, Mapping):
        return model, (), arguments
    return model, arguments if isinstance(arguments, tuple) else (arguments,), {}


def required_of(arguments: argparse.Namespace, model: str) -> RequiredCorrelation:
    """The caller's correlation, else the file's, else the default."""
    if arguments.requirements is None:
        return RequiredCorrelation(CORRELATION if arguments.require is None else arguments.require)
    found = read_required(arguments.requirements, model, arguments.target or "llvm")
    return (
        found if arguments.require is None else RequiredCorrelation(arguments.require, found.exempt)
    )


def show(comparison: ModuleComparison) -> None:
    """Print a row for each module, then the first that is wrong."""
    columns = (
        Column("module", fit="wrap"), Column("class", fit="wrap"),
        Column("correlation", right=True), Column("worst error", right=True),
        Column("", fit="wrap"),
    )  # fmt: skip
    rows = [
        (row.name, row.kind, _correlation(row), f"{row.relative:.1e}", verdict(row))
        for row in comparison.rows
    ]

    def style(row: int, column: int, nth: int) -> str:
        one = comparison.rows[row]
        if column != len(columns) - 1:
            return ""
        return "green" if one.is_close else "yellow" if one.exempt else "bold red"

    print_table(columns, rows, style)
    first, nonfinite = comparison.first_wrong, comparison.first_nonfinite
    outputs = plural(len(comparison.rows), "output")
    if first is None:
        print_check(True, f"{outputs} of modules have the required correlation with eager's")
    else:
        print_check(False, f"the first module that is wrong: {first.name}")
        print_text(f"  --> {first.line}")
        if first.wrong is not None:
            print_text(f"  element {first.wrong}")
    if nonfinite is not None:
        print_check(False, f"the first value that is not finite: in {nonfinite.name}")
        print_text(f"  --> {nonfinite.line}\n  element {nonfinite.nonfinite}")


def _correlation(row: ModuleDifference) -> str:
    return "" if row.correlation != row.correlation else f"{row.correlation:.6f}"


def verdict(row: ModuleDifference) -> str:
    """`equal`, `wrong`, or the reason that it may be."""
    if row.is_close:
        return "equal"
    return f"exempt: {row.exempt}" if row.exempt else "wrong"


def comparison_json(comparison: ModuleComparison) -> dict[str, Any]:
    """A comparison as data."""
    rows = [
        {
            "module": row.name,
            "class": row.kind,
            "type": row.what,
            "correlation": None if row.correlation != row.correlation else row.correlation,
            "error": row.relative,
            "required": row.required,
            "exempt": row.exempt,
            "equal": row.is_close,
            "line": row.line,
            "wrong": None if row.wrong is None else str(row.wrong),
            "nonfinite": None if row.nonfinite is None else str(row.nonfinite),
        }
        for row in comparison.rows
    ]
    return {"model": comparison.model, "equal": comparison.is_close, "modules": rows}
