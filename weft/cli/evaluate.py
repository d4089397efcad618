"""`weft eval`: run a program in numpy and show what it gives."""

from __future__ import annotations

import argparse
import contextlib
import re
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.capture import parse
from weft.cli.parser import Commands, command
from weft.cli.screen import console, plural, print_json
from weft.errors import WeftError
from weft.evaluate import evaluate
from weft.ir.module import Function, Module, walk
from weft.ir.types import Array, TensorType, Type

if TYPE_CHECKING:
    from rich.console import Console

_NUMBERED = re.compile(r"arg(\d+)")


def add(commands: Commands) -> None:
    """Add the command."""
    parser = command(
        commands,
        run,
        "eval",
        "Evaluate a StableHLO program exactly, in numpy, on one device or many.",
        "weft eval examples/all_reduce.mlir --devices 4",
    )
    parser.add_argument("file", help="StableHLO text or bytecode; - reads standard input")
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
    from_stdin = arguments.file == "-"
    module = parse(sys.stdin.buffer.read() if from_stdin else Path(arguments.file))
    function = module.function(arguments.func)
    arrays = _load(arguments.arguments, function, arguments.devices is not None)
    screen = None if arguments.json else console()
    # What a program prints (interpreter.print) must not spoil the JSON.
    with contextlib.redirect_stdout(sys.stderr) if arguments.json else contextlib.nullcontext():
        results = evaluate(module, *arrays, func=function.name, devices=arguments.devices)
    if arguments.out:
        _save(Path(arguments.out), results)
    checks = count_checks(module, function)
    if screen is None:
        print_json(_report(function, results, arguments.devices, checks))
    else:
        _show(screen, function, results, arguments.devices is not None, checks)
    return 0


def _devices(text: str) -> int | tuple[int, int]:
    match = re.fullmatch(r"(\d+)(?:x(\d+))?", text)
    if match is None or "0" in match.groups():
        raise argparse.ArgumentTypeError(f"{text!r} is no number of devices, such as 4 or 2x4")
    return int(match[1]) if match[2] is None else (int(match[1]), int(match[2]))


# Arguments and results in files


def _load(file: str | None, function: Function, stacked: bool) -> list[Array]:
    """The arguments in a file, in order."""
    types = function.arg_types
    if file is None:
        if not types:
            return []
        listed = ", ".join(f"arg{n}: {t}" for n, t in enumerate(types))
        raise WeftError(
            f"@{function.name} takes {plural(len(types), 'argument')} ({listed}), none given",
            help="write them with numpy.savez('args.npz', arg0=..., ...) and name that file"
            + (", every array with a leading device dim" if stacked else ""),
        )
    arrays = _in_order(file, _read(file))
    if len(arrays) != len(types):
        raise WeftError(
            f"{file} holds {plural(len(arrays), 'array')}, "
            f"but @{function.name} takes {plural(len(types), 'argument')}",
            help="give one array for each argument: arg0, arg1, ...",
        )
    return [_restored(array, type) for array, type in zip(arrays, types, strict=True)]


def _read(file: str) -> dict[str, Array]:
    try:
        loaded = np.load(file, allow_pickle=False)
        return {"arg0": loaded} if isinstance(loaded, np.ndarray) else dict(loaded.items())
    except OSError as error:
        reason = error.strerror or "it is no file of arrays"
    except (ValueError, EOFError, zipfile.BadZipFile):
        reason = "it is no file of arrays"
    raise WeftError(f"cannot read {file}: {reason}", help="write it with numpy.savez")


def _in_order(file: str, named: dict[str, Array]) -> list[Array]:
    numbers = [_NUMBERED.fullmatch(name) for name in named]
    if not all(numbers):
        return list(named.values())
    order = {
        int(match[1]): array for match, array in zip(numbers, named.values(), strict=True) if match
    }
    for n in range(len(order)):
        if n not in order:
            raise WeftError(
                f"{file} holds no arg{n}, only {', '.join(named)}",
                help="number the arguments from arg0 without a gap",
            )
    return [order[n] for n in range(len(order))]


def _restored(array: Array, type: Type) -> Array:
    """Elements that numpy's files keep as plain bytes (bf16, f8...) as what they are."""
    if array.dtype.kind != "V" or not isinstance(type, TensorType):
        return array
    held = type.dtype.numpy
    return array.view(held) if array.dtype.itemsize == held.itemsize else array


def _save(path: Path, results: Sequence[Array]) -> None:
    named = {f"result{n}": array for n, array in enumerate(results) if array is not None}
    try:
        with path.open("wb") as file:
            np.savez(file, **named)  # type: ignore[arg-type]  # its stub takes them for flags
    except OSError as error:
        raise WeftError(
            f"cannot write {path}: {error.strerror}", help="give another path after -o"
        ) from None


# What is shown


def count_checks(module: Module, function: Function) -> int:
    """How many check.* calls stand in a function and in those that it calls."""
    found = 0
    reached = [function.name]
    for name in reached:
        for node in walk(module.function(name).body):
            target = getattr(node.op, "call_target_name", node.op.name)
            found += target.startswith("check.")
            callee = getattr(node.op, "callee", None) or getattr(node.op, "decomposition", None)
            if isinstance(callee, str) and callee in module.functions and callee not in reached:
                reached.append(callee)
    return found


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


def plain(array: Array | None) -> Any:
    """An array as JSON: nested lists, pairs for complex numbers, strings for NaN and infinities."""
    if array is None:
        return None
    if array.ndim:
        return [plain(part) for part in array]
    if array.dtype.kind == "c":
        return [plain(array.real), plain(array.imag)]
    if array.dtype.kind in "bui":
        return array.item()
    try:
        number = float(array)
    except TypeError:
        return int(array)
    if number.is_integer() and not _is_float(array):
        return int(number)
    return number if np.isfinite(number) else str(number)


def _is_float(array: Array) -> bool:
    return not str(array.dtype).startswith(("int", "uint"))


def _show(
    screen: Console, function: Function, results: Sequence[Array], stacked: bool, checks: int
) -> None:
    from rich.text import Text

    for index, (type, array) in enumerate(zip(function.result_types, results, strict=True)):
        head = Text.assemble(("result ", "dim"), (str(index), "bold"), "  ", (str(type), "cyan"))
        if not stacked:
            screen.print(head)
            screen.print(_indented(_text(array)), style="bold", markup=False)
            continue
        groups = _alike(array)
        alone = len(groups) == 1
        head.append(f"  the same on {plural(len(array), 'device')}" if alone else "", "dim")
        screen.print(head)
        for devices, value in groups:
            if not alone:
                screen.print(f"  {_listed(devices)}", style="magenta")
            screen.print(_indented(_text(value), 2 if alone else 4), style="bold", markup=False)
    if checks:
        where = " on every device" if stacked else ""
        screen.print(f"[green]✓[/] {plural(checks, 'check')} passed{where}")
    elif not results:
        screen.print("done; the program gives no results", style="dim")


def _alike(stacked: Array) -> list[tuple[list[int], Array]]:
    """The distinct values, each with the devices that hold it."""
    groups: dict[bytes, tuple[list[int], Array]] = {}
    for device, value in enumerate(stacked):
        groups.setdefault(np.asarray(value).tobytes(), ([], value))[0].append(device)
    return list(groups.values())


def _listed(devices: list[int]) -> str:
    """`device 3`, or `devices 0-3, 6`."""
    runs: list[list[int]] = []
    for device in devices:
        if runs and runs[-1][1] + 1 == device:
            runs[-1][1] = device
        else:
            runs.append([device, device])
    shown = ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)
    return f"device{'' if len(devices) == 1 else 's'} {shown}"


def _text(array: Array | None) -> str:
    if array is None:
        return "a token"
    if array.size == 0:
        return "no elements"
    return np.array2string(np.asarray(array), threshold=256, max_line_width=96)


def _indented(text: str, by: int = 2) -> str:
    return "\n".join(" " * by + line for line in text.splitlines())
