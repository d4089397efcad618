"""Arrays on the command line: loading, random arguments, saving, and display."""

from __future__ import annotations

import re
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from weft.cli.screen import plural, print_spans, print_text, width
from weft.errors import WeftError
from weft.ir.module import Function
from weft.ir.types import Array, TensorType, Type, dtype_of

_NUMBERED = re.compile(r"arg(\d+)")


def load(file: str | None, function: Function, stacked: bool) -> list[Array]:
    """The arguments in a file, in order."""
    types = function.arg_types
    if file is None:
        if not types:
            return []
        listed = ", ".join(f"arg{n}: {t}" for n, t in enumerate(types))
        raise WeftError(
            f"@{function.name} takes {plural(len(types), 'argument')} ({listed}), but no file is "
            "named",
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
        reason = error.strerror or "it is not a file of arrays"
    except (ValueError, EOFError, zipfile.BadZipFile) as error:
        if "dtype descriptor" in str(error):
            raise WeftError(
                f"cannot read {file}: numpy does not read elements of every type that it writes",
                help="write them as plain bytes: array.view('V1') for one byte each",
            ) from None
        reason = "it is not a file of arrays"
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
    """An array of a type that numpy files hold as plain bytes (bf16, f8...), restored."""
    if array.dtype.kind != "V" or not isinstance(type, TensorType):
        return array
    held = type.dtype.numpy
    return array.view(held) if array.dtype.itemsize == held.itemsize else array


def save(path: Path, results: Sequence[Array | None]) -> None:
    """Write results to a file, named result0, result1, ..."""
    named = {f"result{n}": _bare(array) for n, array in enumerate(results) if array is not None}
    try:
        with path.open("wb") as file:
            np.savez(file, **named)  # type: ignore[arg-type]  # its stub takes them for flags
    except OSError as error:
        raise WeftError(
            f"cannot write {path}: {error.strerror}", help="give another path after -o"
        ) from None


def _bare(array: Array) -> Array:
    """An array of a type that numpy lacks (bf16, f8...) as plain bytes."""
    own = array.dtype.isbuiltin == 1
    return array if own else array.view(f"V{array.dtype.itemsize}")


def random_arguments(types: Sequence[Type], seed: int) -> list[Array | None]:
    """Arguments of these types: small numbers for floats, 0 to 7 for integers, both booleans."""
    generator = np.random.default_rng(seed)
    return [_random(type, generator) for type in types]


def with_random_values(inputs: tuple[Any, ...], seed: int) -> tuple[Any, ...]:
    """A script's inputs, with arrays in the place of those that are types alone."""
    jax = sys.modules["jax"]  # the script's
    leaves, tree = jax.tree.flatten(inputs)
    missing = [n for n, leaf in enumerate(leaves) if isinstance(leaf, jax.ShapeDtypeStruct)]
    types = [TensorType(leaves[n].shape, dtype_of(leaves[n].dtype)) for n in missing]
    for n, array in zip(missing, random_arguments(types, seed), strict=True):
        leaves[n] = array
    made: tuple[Any, ...] = jax.tree.unflatten(tree, leaves)
    return made


def _random(type: Type, generator: np.random.Generator) -> Array | None:
    if not isinstance(type, TensorType):
        return None
    match type.dtype.kind:
        case "bool" | "int" | "uint":
            top = min(8, 1 << (type.dtype.bits - 1)) if type.dtype.kind != "bool" else 2
            array: Array = generator.integers(0, top, type.sizes)
        case "complex":
            parts = generator.standard_normal((2, *type.sizes))
            array = parts[0] + 1j * parts[1]
        case _:
            array = generator.standard_normal(type.sizes)
    return np.asarray(array).astype(type.dtype.numpy)


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


def show(types: Sequence[Type], results: Sequence[Array | None], stacked: bool = False) -> None:
    """The results of a program, each under its type."""
    for index, (type, array) in enumerate(zip(types, results, strict=True)):
        head = f"result {index}  {type}"
        if not stacked or array is None:
            print_spans([[(head, "cyan")], [(_indented(_text(array)), "bold")]])
            continue
        groups = _alike(array)
        alone = len(groups) == 1
        head += f"  the same on {plural(len(array), 'device')}" if alone else ""
        print_spans([[(head, "cyan")]])
        for devices, value in groups:
            if not alone:
                print_text(f"  {_listed(devices)}", "magenta")
            print_spans([[(_indented(_text(value), 2 if alone else 4), "bold")]])


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
    return np.array2string(np.asarray(array), threshold=256, max_line_width=max(40, width() - 4))


def _indented(text: str, by: int = 2) -> str:
    return "\n".join(" " * by + line for line in text.splitlines())
