"""Comparison of a PyTorch model with eager: the output of every module."""

from __future__ import annotations

import hashlib
import math
import os
import sys
import types
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from weft.array.exchange import to_numpy
from weft.compare.differences import difference
from weft.compare.required import RequiredCorrelation
from weft.compare.stored import keep_arrays, stored_arrays
from weft.compiled import Compiled, compile  # noqa: A004  # the word users know
from weft.errors import WeftError
from weft.ir.types import Array
from weft.records import dataclass

_ROUNDING = 1e-6  # a relative error that f32 explains
_OWN = str(Path(__file__).parents[1]) + os.sep


@dataclass(frozen=True, slots=True)
class WrongElement:
    """An element of a module's output: its index, what it is and what it should be."""

    index: tuple[int, ...]
    given: float | complex
    expected: float | complex

    def __str__(self) -> str:
        at = ", ".join(map(str, self.index))
        return f"[{at}] is {self.given:.6g}, not {self.expected:.6g}"


@dataclass(frozen=True, slots=True)
class ModuleDifference:
    """One output of one call of a module, against eager's."""

    name: str  # the module's path; with the number of the call and the output if there are several
    kind: str  # its class
    what: str  # the type of the output
    correlation: float
    relative: float  # the worst error over the largest element
    deviation: float  # the root mean square of errors over that of the elements
    required: float
    exempt: str  # the reason that it need not be right
    line: str  # file:line of the call
    wrong: WrongElement | None = None  # the first element that is off by more than rounding
    nonfinite: WrongElement | None = None  # the first NaN or infinity

    @property
    def is_close(self) -> bool:
        """Whether it has the required correlation, and no larger error than noise would explain.

        Correlation does not see shifts and scales; they count like noise of the same size. An
        output of one number has no correlation.
        """
        noise = math.sqrt(2 * (1 - self.required)) + _ROUNDING
        correlates = self.correlation >= self.required or np.isnan(self.correlation)
        return bool(correlates and self.deviation <= noise)


@dataclass(frozen=True, slots=True)
class ModuleComparison:
    """The outputs of all modules of a model, in the order of their calls."""

    model: str
    rows: tuple[ModuleDifference, ...]
    compiled: Compiled

    @property
    def is_close(self) -> bool:
        """Whether every module that is not exempt is right."""
        return self.first_wrong is None

    @property
    def first_wrong(self) -> ModuleDifference | None:
        """The first module, in the order of calls, that is wrong and not exempt."""
        return next((row for row in self.rows if not row.is_close and not row.exempt), None)

    @property
    def first_nonfinite(self) -> ModuleDifference | None:
        """The first module with a NaN or an infinity that eager does not have."""
        return next((row for row in self.rows if row.nonfinite is not None), None)


def compare_modules(
    model: Any,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    required: RequiredCorrelation | None = None,
    cache: Path | None = None,
    **options: Any,
) -> ModuleComparison:
    """Run a model sharded and eagerly, and compare the output of every module.

    The options are those of `weft.compile`: mesh, plan, level, target. Eager's values are kept in
    the folder `cache`, if there is one, for the next comparison of the same weights and arguments.
    """
    import torch

    if not isinstance(model, torch.nn.Module):
        raise WeftError(
            f"a {type(model).__name__} is not a model whose modules can be compared",
            help="give a torch.nn.Module",
        )
    keywords = dict(kwargs or {})
    watch = _Watch(model)
    expected = _reference(watch, args, keywords, cache)
    compiled = compile(watch.method(), **options)
    outputs = {name: to_numpy(value) for name, value in compiled(*args, **keywords).items()}
    wanted, rows = required or RequiredCorrelation(), []
    for name, (array, kind, line) in expected.items():
        rows.append(_compared(name, kind, line, outputs[name], array, wanted))
    return ModuleComparison(type(model).__name__, tuple(rows), compiled)


class _Watch:
    """The outputs of all modules of a model, as results of its forward pass."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.names = {id(module): name for name, module in model.named_modules()}
        self.lines: dict[str, tuple[str, str]] = {}  # by output: class and line

    def method(self) -> Any:
        """A method of the model that returns every tensor that a module has returned, by name."""
        watch = self

        def forward(model: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
            found: dict[str, Any] = {}
            with watch.hooks(model, found):
                model(*args, **kwargs)
            return found

        return types.MethodType(forward, self.model)

    @contextmanager
    def hooks(self, model: Any, found: dict[str, Any]) -> Iterator[None]:
        """Record the outputs of modules while they are called."""
        handles = [module.register_forward_hook(self.recorder(found)) for module in model.modules()]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def recorder(self, values: dict[str, Any]) -> Any:
        import torch
        from torch.utils._pytree import tree_leaves

        def record(module: Any, args: Any, output: Any) -> None:
            name = self.names.get(id(module), "") or "the model"
            calls = 1
            while any(f.partition(" ")[0] == _call(name, calls) for f in values):
                calls += 1
            tensors = [t for t in tree_leaves(output) if isinstance(t, torch.Tensor)]
            for n, tensor in enumerate(tensors):
                known = _call(name, calls) + (f" output {n}" if len(tensors) > 1 else "")
                values[known] = tensor.clone()
                self.lines[known] = (type(module).__name__, _callers_line())

        return record


def _call(name: str, number: int) -> str:
    """A module's call: its path, numbered from the second on. Paths have no spaces."""
    path = name.replace(" ", "_")
    return path if number == 1 else f"{path}#{number}"


def _callers_line() -> str:
    """The line that called a module: the innermost that is neither PyTorch's nor Weft's."""
    import torch

    library = str(Path(torch.__file__).parent)
    frame = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith((library, _OWN, "<")):
            return f"{file}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return ""


def _reference(
    watch: _Watch, args: Sequence[Any], kwargs: Mapping[str, Any], cache: Path | None
) -> dict[str, tuple[Array, str, str]]:
    """Eager's outputs with classes and lines, from the disk if they were computed before."""
    import torch

    model = watch.model
    file = None if cache is None else cache / f"modules-{_key(model, args, kwargs)}.npz"
    stored = stored_arrays(file)
    if stored is None:
        with torch.no_grad():
            found = watch.method()(*args, **kwargs)
        stored = {
            f"{name}|{'|'.join(watch.lines[name])}": to_numpy(value)
            for name, value in found.items()
        }
        if file is not None:
            keep_arrays(file, stored)
    outputs = {}
    for words, array in stored.items():
        name, kind, line = words.split("|", 2)
        outputs[name] = (array, kind, line)
    return outputs


def _key(model: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """A digest of the model's class, weights and arguments."""
    import torch
    from torch.utils._pytree import tree_flatten

    leaves, tree = tree_flatten((tuple(args), dict(kwargs)))
    held = [*model.state_dict().items(), *enumerate(leaves)]
    digest = hashlib.sha256(f"{torch.__version__} {model!r} {tree}".encode())
    for name, value in held:
        digest.update(str(name).encode())
        if isinstance(value, torch.Tensor):
            digest.update(f"{value.dtype} {[*value.shape]}".encode())
            digest.update(np.ascontiguousarray(to_numpy(value)).tobytes())
        else:
            digest.update(repr(value).encode())
    return digest.hexdigest()[:24]


def _compared(
    name: str, kind: str, line: str, array: Array, expected: Array, required: RequiredCorrelation
) -> ModuleDifference:
    found = difference(name, array, expected)
    wrong = None if found.is_close else _first_wrong(array, expected)
    return ModuleDifference(
        name, kind, found.what, found.correlation, found.relative,
        _deviation(array, expected), required.correlation,
        required.reason(name.partition(" ")[0].partition("#")[0]), line, wrong,
        _first_nonfinite(array, expected),
    )  # fmt: skip


def _deviation(given: Array, expected: Array) -> float:
    """The root mean square of errors over that of the reference; infinite for a lone NaN."""
    wide = np.complex128 if expected.dtype.kind == "c" else np.float64
    a, b = given.astype(wide), expected.astype(wide)
    with np.errstate(all="ignore"):
        off = np.abs(np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0, a - b))
        size = float(np.sqrt(np.square(np.abs(b[np.isfinite(b)])).sum())) or 1.0
        made = float(np.sqrt(np.square(off).sum())) / size
    return made if np.isfinite(made) else math.inf


def _element(array: Array, expected: Array, flags: Array) -> WrongElement | None:
    if not flags.any():
        return None
    at = np.unravel_index(int(flags.argmax()), flags.shape)
    pair = (_plain(array[at]), _plain(expected[at]))
    return WrongElement(tuple(map(int, at)), *pair)


def _plain(element: Any) -> float | complex:
    return complex(element) if np.iscomplexobj(element) else float(element)


def _first_wrong(array: Array, expected: Array) -> WrongElement | None:
    """The first element that is off by a thousandth of the largest, or not finite alone."""
    wide = np.complex128 if expected.dtype.kind == "c" else np.float64
    a, b = array.astype(wide), expected.astype(wide)
    with np.errstate(all="ignore"):
        same = (a == b) | (np.isnan(a) & np.isnan(b))
        least = 1e-3 * np.abs(b[np.isfinite(b)]).max(initial=0.0)
        return _element(array, expected, ~same & ~(np.abs(a - b) <= least))


def _first_nonfinite(array: Array, expected: Array) -> WrongElement | None:
    """The first NaN or infinity that the reference does not have."""
    if expected.dtype.kind in "biu":
        return None
    wide = np.complex128 if expected.dtype.kind == "c" else np.float64
    a, b = np.isfinite(array.astype(wide)), np.isfinite(expected.astype(wide))
    return _element(array, expected, ~a & b)
