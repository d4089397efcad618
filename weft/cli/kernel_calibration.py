"""Measured overheads of small kernels on this processor.

Small programs are compiled, every kernel of them is timed in a launch queue of its own, and the
machine's overheads are fitted to what their times exceed the roofline by.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from weft.cli.calibration_programs import kernel_programs
from weft.cli.call_calibration import call_overheads
from weft.cli.least_seconds import launch_seconds
from weft.compiled import compile as compile_program
from weft.cost.kernels import MULTIPLIED, largest_share, serial_seconds
from weft.emit.llvm.pool.commands import CommandList
from weft.emit.llvm.pool.pool import lone_pool
from weft.emit.llvm.units import kernel_units
from weft.kernels.flow import ControlFlow
from weft.kernels.group import AnyKernel
from weft.machine import Machine
from weft.machine.machine import OVERHEADS
from weft.run.bind import loaded_kernels

_SWEEPS = 2000  # over two dozen numbers
_SHARED = 4  # of so many programs one is run on all threads, too
_DIVIDED = 0.9  # of the seconds of one thread: a kernel that takes longer is not divided
_ROUNDS = 6  # of fitting, with weights by the round before
_RESOLVED, _SHORTEST = 2e-7, 0.3  # seconds and share that errors are relative to at least


def overheads(machine: Machine, seconds: float) -> dict[str, float]:
    """Seconds of a unit of each overhead, each program measured for about so many seconds."""
    found = dict(call_overheads(10 * seconds))
    texts = [*kernel_programs()]
    timed = [pair for text in texts for pair in kernel_times(text, seconds, alone=True)]
    return found | fitted(timed, machine) | {"wake": _wake(machine, texts[::_SHARED], seconds)}


def fitted(timed: Sequence[tuple[AnyKernel, float]], machine: Machine) -> dict[str, float]:
    """The overheads that explain best what kernels take beyond their products, by ratio."""
    counted = [(kernel_units(kernel), kernel, seconds) for kernel, seconds in timed]
    # Flows are made of the other kernels.
    counted = [one for one in counted if one[0] and not isinstance(one[1], ControlFlow)]
    names = [name for name in OVERHEADS if any(units.get(name) for units, _, _ in counted)]
    counts = np.array([[units.get(name, 0.0) for name in names] for units, _, _ in counted])
    spent = np.array([seconds for _, _, seconds in counted])
    known = np.array(
        [
            machine.launch
            + serial_seconds(kernel, {MULTIPLIED: units.get(MULTIPLIED, 0.0)}, machine)
            for units, kernel, _ in counted
        ]
    )
    least, solved = np.maximum(spent, _RESOLVED), np.zeros(len(names))
    weights = 1 / least
    for _ in range(_ROUNDS):
        solved = positive_least_squares(counts * weights[:, None], (spent - known) * weights)
        # Errors relative to the measured seconds alone would favour all that is too short.
        predicted = np.maximum(counts @ solved + known, least * _SHORTEST)
        weights = 1 / np.sqrt(predicted * least)
    return dict(zip(names, map(float, solved), strict=True))


def positive_least_squares(
    matrix: npt.NDArray[np.float64], wanted: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """The least squares solution with no negative entries, by coordinate descent."""
    # Columns of one size: counts of elements and of launches differ by orders of magnitude.
    scale = np.sqrt((matrix**2).sum(0))
    scale[scale == 0] = 1.0
    columns, solution = matrix / scale, np.zeros(matrix.shape[1])
    rest = wanted.astype(np.float64)
    for _ in range(_SWEEPS):
        for n in range(len(solution)):
            moved = max(0.0, solution[n] + columns[:, n] @ rest) - solution[n]
            rest = rest - moved * columns[:, n]
            solution[n] += moved
    result: npt.NDArray[np.float64] = solution / scale
    return result


def _wake(machine: Machine, texts: Sequence[str], seconds: float) -> float:
    """Seconds that a shared kernel takes beyond its thread with most tasks."""
    if machine.threads == 1:
        return 0.0
    found = [0.0]
    for text in texts:
        pairs = zip(
            kernel_times(text, seconds, alone=True), kernel_times(text, seconds), strict=True
        )
        for (kernel, serial), (_, shared) in pairs:
            if shared < _DIVIDED * serial:
                found.append(shared - serial * largest_share(kernel_units(kernel), machine))
    return max(0.0, float(np.median(found)))


def kernel_times(
    text: str, seconds: float, *, alone: bool = False
) -> Iterator[tuple[AnyKernel, float]]:
    """Every kernel of a program with the seconds of one launch, `alone` on one thread."""
    local = compile_program(text, tune="remembered").program.local
    assert local.target is not None and local.calls is not None, "compiled to kernels"
    for launch, loaded in loaded_kernels(local.calls):
        queue = CommandList(lone_pool()) if alone else local.target.commands()
        yield launch.kernel, launch_seconds(queue, launch.kernel, loaded, seconds)
